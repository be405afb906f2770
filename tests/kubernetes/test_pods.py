"""Real training jobs in pods of a real node (T3), driven by the operator in pods of deploy/kubernetes. Skipped, as a whole, where
`tools/dev kube --pods` has not prepared one, and where a kubelet cannot run.

Images are made by deploy/containers' own lists of programs, from LONGHAUL_PROGRAMS and this machine's libraries; without Python, which
no script here needs. With LONGHAUL_WRITE_RESULTS=1 docs/results/kubernetes_t3.json is written at the end.
"""
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import evidence
import pytest
from control_plane import command_within, dies_with_its_parent, eventually, within
from evidence import figure
from node import GPU, Node, missing, own_groups
from resources import FOLDER, example
from test_containers import copied, installed, stages

if missing():
    pytest.skip(f"NO NODE FOR PODS: nothing here has run: {missing()}", allow_module_level=True)
if not (pathlib.Path(os.environ.get("LONGHAUL_PROGRAMS", "/none")) / "longhaul-operator").exists():
    pytest.skip("NO OPERATOR: LONGHAUL_PROGRAMS names no folder with longhaul-operator", allow_module_level=True)

PROGRAMS = pathlib.Path(os.environ["LONGHAUL_PROGRAMS"]).absolute()
DATASET = pathlib.Path("/usr/share/datasets/fashion-mnist")
IMAGE = "registry.example/longhaul-worker:t3"
OPERATOR = "app.kubernetes.io/name=longhaul-operator"
RANKS = 3  # of a pod
TENSORS = 4  # of the trainer's model
JOBS = "/apis/longhaul.dev/v1alpha1/namespaces/training/trainingjobs"
BEGUN = time.monotonic()


# --- The cluster, as an administrator makes it.
def image_of(node, containerfile, name):
    """What the containerfile copies, and what every Debian has that pods' commands name."""
    last = dict(stages(containerfile)[-1][1])
    start = {key: json.loads(last[word]) for key, word in (("Entrypoint", "ENTRYPOINT"), ("Cmd", "CMD")) if word in last}
    files = {"/usr/local/bin/" + program: PROGRAMS / program for program in
             [pathlib.PurePath(source).name for source, _ in copied(containerfile) if "/release/bin/" in source]}
    if "dataset-fashion-mnist" in installed(containerfile):
        files |= {str(file): file for file in DATASET.iterdir()}
    for tool in ("sh", "install", "test", "ls", "sleep", "env", "kill", "sha256sum"):
        files["/usr/bin/" + tool] = shutil.which(tool)
    # The back end of liberasurecode is opened by its name.
    for library in pathlib.Path("/usr/lib/x86_64-linux-gnu").glob("lib*"):
        if re.match(r"lib(erasurecode|isal|Xorcode|nullcode)", library.name):
            files[str(library)] = library
    files["/etc/passwd"] = b"root:x:0:0::/:/bin/sh\n"
    merged = {"/" + folder: "usr/" + folder for folder in ("bin", "sbin", "lib", "lib64")}
    node.add_image(name, files, merged, User=last["USER"], **start)


def install(node):
    image_of(node, "worker.containerfile", IMAGE)
    image_of(node, "operator.containerfile", "docker.io/library/longhaul-operator:latest")
    plane = node.plane
    for words in (["--validate=false", "-k", FOLDER], ["-k", FOLDER / "admission-webhook"]):  # as docs/howto/kubernetes.md does it
        code, said = plane.kubectl("apply", *map(str, words))
        assert code == 0, said
    kubectl = node.folder / "kubectl"
    kubectl.write_text("#!/bin/sh\nexec " + " ".join(node.kubectl_command()) + ' "$@"\n')
    kubectl.chmod(0o755)
    done = subprocess.run([str(FOLDER / "admission-webhook/certificate.sh")], env={**os.environ, "KUBECTL": str(kubectl)},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    code, said = plane.kubectl("apply", "-f", str(FOLDER / "examples/permission.yaml"))
    assert code == 0, said


@pytest.fixture(scope="module")
def node(request):
    with Node() as one:
        install(one)
        data = one.add_volume("fashion")
        for file in DATASET.iterdir():
            shutil.copy(file, data)
        apply(one, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "fashion", "namespace": "training"},
                    "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": "fashion", "storageClassName": "",
                             "resources": {"requests": {"storage": "1Gi"}}}})
        apply(one, {"apiVersion": "longhaul.dev/v1alpha1", "kind": "TrainingProfile", "metadata": {"name": "a100", "namespace": "training"},
                    "spec": {"gpuResource": GPU, "maxGPUs": RANKS, "cleanPolicy": "None"}})
        assert eventually(lambda: [is_ready(pod) for pod in pods(one, OPERATOR, "longhaul-system")] == [True, True], seconds=120), \
            one.plane.kubectl("describe", "pods", "-n", "longhaul-system")[1]
        yield one
    whole = len(request.session.items) == sum(name.startswith("test_") for name in globals()) and request.session.testsfailed == 0
    if whole and evidence.write("t3", evidence.FIGURES, time.monotonic() - BEGUN):
        print("wrote docs/results/kubernetes_t3.json")


def apply(node, thing, verb="apply", *words):
    code, said = node.plane.kubectl(verb, *words, "-f", "-", text=json.dumps(thing))
    assert code == 0, said


def pods(node, selector, namespace="training"):
    return node.plane.ask("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")[1]["items"]


def is_ready(pod):
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod.get("status", {}).get("conditions", []))


def page(node, pod, port=9464):
    """{metric: value}, those without labels."""
    try:
        with within(node.network), urllib.request.urlopen(f"http://{pod['status']['podIP']}:{port}/metrics", timeout=10) as answer:
            return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", answer.read().decode(), re.M)}
    except (OSError, KeyError):
        return {}


class Job:
    """A training that alice submits: two nodes of three ranks."""

    def __init__(self, node, name, rounds):
        self.node, self.name, self.rounds, self.begun = node, name, rounds, time.monotonic()
        node.add_volume(f"{name}-checkpoints")
        script = f"#!/bin/sh\nexec longhaul-trainer --rounds {rounds} --data /data --progress json\n"
        spec = {"profileRef": {"name": "a100"}, "totalGPUs": 2 * RANKS, "image": IMAGE, "data": {"claimName": "fashion"},
                "script": {"inline": script}, "server": {"storage": {"size": "1Gi"}}}
        apply(node, {"apiVersion": "longhaul.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name, "namespace": "training"},
                     "spec": spec}, "create", "--as=alice")
        assert eventually(lambda: self.phase() == "Running", seconds=120), self.describe()

    def read(self):
        return self.node.plane.ask("GET", f"{JOBS}/{self.name}")[1]

    def status(self):
        return self.read().get("status", {})

    def phase(self):
        return self.status().get("phase")

    def describe(self):
        return self.node.plane.kubectl("describe", "trainingjob", self.name, "-n", "training")[1]

    def pod(self, name):
        code, found = self.node.plane.ask("GET", f"/api/v1/namespaces/training/pods/{self.name}-{name}")
        return found if code == 200 else {}

    def rounds_done(self):
        return page(self.node, self.pod("server-0")).get("longhaul_server_rounds_total", 0)

    def reaches_round(self, round_number, seconds=120):
        assert eventually(lambda: self.rounds_done() >= round_number, seconds), self.describe()

    def follow(self, pod, container):
        """Its log from now on in a file, which is there when the pod is not any more."""
        file = self.node.folder / f"{self.name}-{pod}-{container}-{time.monotonic_ns()}.log"
        with open(file, "wb") as log:
            command = self.node.kubectl_command("logs", "-f", "--timestamps", "-n", "training", f"{self.name}-{pod}", "-c", container)
            subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=dies_with_its_parent)
        return file

    def delete_pod(self, name, *words):
        code, said = self.node.plane.kubectl("delete", "pod", "-n", "training", f"{self.name}-{name}", *words)
        assert code == 0, said

    def ends(self, seconds=300):
        assert eventually(lambda: self.phase() in ("Succeeded", "Failed"), seconds), self.describe()
        assert self.phase() == "Succeeded", self.describe()
        return time.monotonic() - self.begun


def lines_of(file):
    """(time, text) of a log with time stamps. Those of containerd have the same form and zone."""
    return [tuple(line.split(" ", 1)) for line in file.read_text(errors="replace").splitlines() if " " in line]


def events_of(file, kind):
    """(time, object) of the lines in JSON."""
    found = [(at, json.loads(text)) for at, text in lines_of(file) if text.startswith("{")]
    return [(at, event) for at, event in found if event["event"] == kind]


def rounds_of(trainer):
    """[(time, round)] of all ranks of a pod: what they had the result of."""
    return [(at, event["round"]) for at, event in events_of(trainer, "round")]


# --- The node itself.
def test_nothing_is_left_of_a_node_whose_test_is_killed():
    command = [sys.executable, str(pathlib.Path(__file__).with_name("node.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        made = json.loads(process.stdout.readline())
        assert pathlib.Path(made["folder"]).is_dir()
        process.kill()
    left = [pathlib.Path(made["folder"]), *[group / f"longhaul-node-{process.pid}" for group in own_groups().values()]]
    assert eventually(lambda: not any(path.exists() for path in left), seconds=30), [path for path in left if path.exists()]
    assert not [file for file in pathlib.Path("/proc").glob("[0-9]*/cmdline") if made["folder"].encode() in contents(file)]


def contents(file):
    try:
        return file.read_bytes()
    except OSError:  # the process has ended
        return b""


# --- The operator, from deploy/kubernetes.
def test_the_operator_runs_in_pods_of_its_manifest(node):
    assert {pod["spec"]["containers"][0]["image"] for pod in pods(node, OPERATOR, "longhaul-system")} == {"longhaul-operator"}
    begun = []
    for _ in range(5):  # the machine may be busy with other tests
        port = 20000 + os.getpid() % 10000  # in the node's network
        command = [*command_within(node.network), str(PROGRAMS / "longhaul-operator"), "--kubeconfig", str(node.plane.kubeconfig("operator")),
                   "--lease-namespace", "longhaul-system", "--metrics", f"127.0.0.1:{port}"]
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=dies_with_its_parent)
        try:
            assert eventually(lambda port=port: answers(node, f"http://127.0.0.1:{port}/healthz"), seconds=30, every=0.002)
            begun.append(time.monotonic() - start)
        finally:
            process.terminate()
            process.wait(20)
    assert min(begun) <= 0.1, begun
    figure("operator", pods="2 of deploy/kubernetes, ready, webhooks by certificate.sh", starts_in_ms=round(1000 * min(begun)))


def answers(node, url):
    try:
        with within(node.network), urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


# --- A training, and the users of its processes.
def test_s12_s13_s17_a_training_of_two_pods_reaches_its_accuracy(node):
    job = Job(node, "trains", rounds=500)
    server = job.follow("server-0", "server")
    engines = [job.follow(f"node-{rank}", "engine") for rank in (0, 1)]
    trainers = [job.follow(f"node-{rank}", "trainer") for rank in (0, 1)]
    addresses = [job.pod(f"node-{rank}")["status"]["podIP"] for rank in (0, 1)]
    no_process_is_root_or_has_a_token(node)
    seconds = job.ends()
    [accuracy] = [event["accuracy"] for _, event in events_of(trainers[0], "finished") if "accuracy" in event]
    assert accuracy >= 0.86
    # Each pod is one member, by UDP from its own address, and each of its ranks has every round.
    joins = {event["rank"]: event["peer"].split(":")[0] for _, event in events_of(server, "join")}
    assert joins == {0: addresses[0], 1: addresses[1]} and len(set(addresses)) == 2
    assert all(event["contributors"] == 2 for _, event in events_of(server, "round"))
    for trainer in trainers:
        assert collections.Counter(number for _, number in rounds_of(trainer)) == {number + 1: RANKS for number in range(job.rounds)}
    # The ring is the engine's: three places, each of which has added up every tensor of every round.
    for engine in engines:
        [(_, finished)] = events_of(engine, "finished")
        assert len(finished["nodes"]) == RANKS
        for place in finished["nodes"]:
            assert place["messages_done"] >= TENSORS * job.rounds and place["packets_sent"] > 0 and place["nodes_lost"] == 0, place
    assert list((node.folder / "volumes").glob("*/job/checkpoint-*/manifest.json"))
    figure("two pods of 3 CPU ranks", accuracy=accuracy, rounds=job.rounds, seconds=round(seconds), end="Succeeded",
           ring="3 engines a pod, %d sums each" % min(place["messages_done"] for place in finished["nodes"]))


def test_the_first_job_of_the_howto_trains(node):
    first = example("first-job.yaml")
    first["spec"]["image"] = IMAGE
    apply(node, first, "create", "--as=alice")
    def phase():
        return node.plane.ask("GET", f"{JOBS}/first")[1].get("status", {}).get("phase")
    assert eventually(lambda: phase() in ("Succeeded", "Failed"), 240)
    log = node.plane.kubectl("logs", "-n", "training", "first-node-0", "-c", "trainer")[1]
    assert phase() == "Succeeded", log
    [accuracy] = set(re.findall(r"accuracy (0\.\d+)", log)[-1:])
    assert float(accuracy) >= 0.86, log


def no_process_is_root_or_has_a_token(node):
    seen = collections.Counter()
    for pid, name in node.processes().items():
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        users = re.search(r"^Uid:\s+(.*)$", status, re.M)[1].split()
        assert "0" not in users, (name, users)
        if name not in ("busybox", "sh"):  # the sandbox has no security context of its own
            assert re.search(r"^CapEff:\s+0+$", status, re.M) and re.search(r"^NoNewPrivs:\s+1$", status, re.M), (name, status)
        seen[name] += 1
        has_token = pathlib.Path(f"/proc/{pid}/root/var/run/secrets/kubernetes.io/serviceaccount/token").exists()
        assert has_token == name.startswith("longhaul-operat"), name
        if name.startswith("longhaul-operat"):
            megabytes = int(re.search(r"^VmHWM:\s+(\d+) kB", status, re.M)[1]) * 1024 / 1e6
            assert megabytes <= 50
            figure("operator", most_memory_MB=max(round(megabytes, 1), evidence.FIGURES.get("operator", {}).get("most memory MB", 0)))
    assert seen["longhaul-server"] == 1 and seen["longhaul-traine"] == 2 * RANKS and seen["longhaul-offloa"] == 2, seen
    figure("processes in containers", root=0, with_a_token="the operator's 2", seen=sum(seen.values()))


# --- The server's pod is deleted, and then its process killed.
def test_s15_the_server_moves_and_no_acknowledged_round_is_lost(node):
    job = Job(node, "moves", rounds=900)
    trainers = [job.follow(f"node-{rank}", "trainer") for rank in (0, 1)]
    before = job.pod("server-0")
    job.reaches_round(150)
    job.delete_pod("server-0")
    assert eventually(lambda: is_ready(job.pod("server-0"))), job.describe()
    after, second = job.pod("server-0"), job.follow("server-0", "server")
    assert after["metadata"]["uid"] != before["metadata"]["uid"] and after["status"]["podIP"] != before["status"]["podIP"]
    text = job.describe()
    assert "ServerNotReady" in text and "waits for the server" in text, text
    job.reaches_round(100)
    [pid] = [pid for pid, name in node.processes().items() if name == "longhaul-server"]
    os.kill(pid, signal.SIGKILL)

    def started_again():
        [container] = job.pod("server-0")["status"]["containerStatuses"]
        return container["restartCount"] == 1 and container["ready"]
    assert eventually(started_again), job.describe()
    third = job.follow("server-0", "server")
    seconds = job.ends()
    said = node.plane.kubectl("get", "events", "-n", "training", "--field-selector=involvedObject.name=moves-server-0")[1]
    assert "Killing" in said and "FailedPreStopHook" not in said, said
    lost = [rounds_lost(server, trainers) for server in (second, third)]
    assert lost == [0, 0]
    for trainer in trainers:
        assert collections.Counter(number for _, number in rounds_of(trainer)) == {number + 1: RANKS for number in range(job.rounds)}
    assert all(node["retries"] == node["disruptions"] == 0 for node in job.status()["nodes"]), job.describe()
    figure("server's pod deleted, then its process killed", address="%s, then %s" % (before["status"]["podIP"], after["status"]["podIP"]),
           acknowledged_rounds_lost=sum(lost), rounds_done_twice=0, pods_retried=0, seconds=round(seconds), end="Succeeded")


def rounds_lost(server, trainers):
    """Of those that ranks had the result of before this server was there: how many it does not go on from."""
    restored = [(at, re.search(r"after round (\d+) by the round log", text)) for at, text in lines_of(server)]
    begun, restored = next((at, int(found[1])) for at, found in restored if found)
    acknowledged = max(number for trainer in trainers for at, number in rounds_of(trainer) if at < begun)
    assert acknowledged >= 100, acknowledged  # else nothing was at stake
    return max(0, acknowledged - restored)


# --- A node's pod is deleted.
def test_s15_a_pod_that_is_deleted_comes_again_and_the_old_one_is_fenced(node):
    job = Job(node, "comes-again", rounds=5000)  # a minute: the next pod and the zombie come while it trains
    server, other = job.follow("server-0", "server"), job.follow("node-0", "trainer")
    old = job.pod("node-1")
    job.reaches_round(100)
    job.delete_pod("node-1")
    assert eventually(lambda: job.pod("node-1").get("metadata", {}).get("labels", {}).get("longhaul.dev/incarnation") == "2" and
                      is_ready(job.pod("node-1"))), job.describe()
    # As on a machine that was cut off: the pod of before runs again, with its command, its key and its rank.
    apply(node, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "zombie", "namespace": "training"},
                 "spec": as_it_was(old["spec"])})
    assert eventually(lambda: events_of(server, "refused")), server.read_text()
    text = job.describe()
    assert "comes-again-node-1: evicted or deleted; a new pod follows in 1 s (does not count as a retry)" in text, text
    assert re.search(r"Disruptions: +1\n", text) and "NodeDisrupted" in text and "NodesNotReady" in text, text
    again = job.follow("node-1", "trainer")
    seconds = job.ends()
    assert [(event["rank"], event["incarnation"]) for _, event in events_of(server, "join")][2:] == [(1, 2)]
    [(_, refused)] = events_of(server, "refused")
    assert "incarnation 1 of rank 1 is older than 2" in refused["message"], refused
    assert (RANKS, job.rounds) == (collections.Counter(number for _, number in rounds_of(other))[job.rounds], max(rounds_of(again))[1])
    first_again = min(number for _, number in rounds_of(again))
    assert first_again > 100  # it goes on where the job is
    members = collections.Counter(event["contributors"] for _, event in events_of(server, "round"))
    assert members[2] > members[1] > 0 and not members.keys() - {1, 2}
    assert [(each["retries"], each["disruptions"]) for each in job.status()["nodes"]] == [(0, 0), (0, 1)]
    figure("a node's pod deleted", incarnation="2 joined; 1, run again, was refused by name", goes_on_at_round=first_again,
           rounds_without_it=members[1], seconds=round(seconds), end="Succeeded")
    node.plane.kubectl("delete", "pod", "zombie", "-n", "training", "--wait=false")


def as_it_was(spec):
    """Without a machine, and without GPUs, which the next one has by now."""
    spec = json.loads(json.dumps(spec))
    del spec["nodeName"]
    for container in spec["containers"]:
        container.pop("resources", None)
    return spec
