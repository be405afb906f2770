"""The operator at a real API server, with the real controllers and scheduler (T2). Skipped, as a whole, where `tools/dev kube` has not
prepared one. Machines and their pods are tests/kubernetes/pod_processes.py; named after the requirements S1 to S17.

LONGHAUL_SEED=N replays the random points of a run. With LONGHAUL_WRITE_RESULTS=1 docs/results/kubernetes_t2.json is written at the end.
"""
import base64
import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time
import urllib.request

import evidence
import pytest
from control_plane import ControlPlane, cache, command_within, dies_with_its_parent, eventually, free_port, within
from evidence import figure
from pod_processes import GPU, Machines, Requests, Watch, claim
from resources import FOLDER, load

if cache() is None:
    pytest.skip("NO CONTROL PLANE: nothing here has run; `tools/dev kube` prepares one (10 minutes, once)", allow_module_level=True)
if not (pathlib.Path(os.environ.get("LONGHAUL_PROGRAMS", "/none")) / "longhaul-operator").exists():
    pytest.skip("NO OPERATOR: LONGHAUL_PROGRAMS names no folder with longhaul-operator", allow_module_level=True)

PROGRAMS = pathlib.Path(os.environ["LONGHAUL_PROGRAMS"]).absolute()
GROUP = "/apis/longhaul.dev/v1alpha1"
BEGUN = time.monotonic()
KEY = os.urandom(32)  # the operator's
DATASET = pathlib.Path("/usr/share/datasets/fashion-mnist")
CAN_HAVE_PROCESSES = os.geteuid() == 0 and DATASET.exists()


# --- The cluster, as an administrator makes it.
def install(plane):
    code, words = plane.kubectl("apply", "--validate=false", "-k", str(FOLDER))
    assert code == 0, words
    code, words = plane.kubectl("apply", "-f", str(FOLDER / "examples/permission.yaml"))
    assert code == 0, words
    # The operator of the tests is a process beside it.
    plane.ask("DELETE", "/apis/apps/v1/namespaces/longhaul-system/deployments/longhaul-operator")
    assert eventually(lambda: plane.ask("GET", GROUP + "/trainingjobs")[0] == plane.ask("GET", GROUP + "/trainingprofiles")[0] == 200)
    permit(plane, "alice")
    key = {"metadata": {"name": "longhaul-operator-key"}, "data": {"operator.key": base64.b64encode(KEY).decode()}}
    assert plane.ask("POST", "/api/v1/namespaces/longhaul-system/secrets", key)[0] == 201
    return plane


def permit(plane, user, namespace="training"):
    """Any profile of the namespace."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/"
    rule = {"apiGroups": ["longhaul.dev"], "resources": ["trainingprofiles"], "verbs": ["use"]}
    role = {"metadata": {"name": f"{user}-uses"}, "rules": [rule]}
    binding = {"metadata": {"name": f"{user}-uses"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"{user}-uses"}}
    assert plane.ask("POST", rbac + "roles", role)[0] == 201 and plane.ask("POST", rbac + "rolebindings", binding)[0] == 201


@pytest.fixture(scope="module")
def plane(request):
    with ControlPlane() as one:
        yield install(one)
    tests = sum(name.startswith("test_") for name in globals())
    whole = len(request.session.items) == tests and request.session.testsfailed == 0 and CAN_HAVE_PROCESSES
    if whole and evidence.write("t2", evidence.FIGURES, time.monotonic() - BEGUN):
        print("wrote docs/results/kubernetes_t2.json")


class Operator:
    """A process of the daemon. Its identity in the lease is a pod's name, which stays when the container starts again."""

    def __init__(self, plane, *flags, identity="operator-0", namespace=None):
        self.plane, self.namespace, self.port = plane, namespace, free_port()
        self.log = plane.folder / f"{identity}.log"
        with open(self.log, "ab") as log:
            self.begun = time.monotonic()
            self.process = subprocess.Popen(
                [*command_within(namespace), str(PROGRAMS / "longhaul-operator"), "--kubeconfig", str(plane.kubeconfig("operator")),
                 "--lease-namespace", "longhaul-system", "--identity", identity, "--metrics", f"127.0.0.1:{self.port}", *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=dies_with_its_parent)

    def __enter__(self):
        assert eventually(lambda: self.metric("leads") == 1, seconds=30), self.words()
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            print(self.words())
        self.end(signal.SIGTERM)

    def end(self, by):
        if self.process.poll() is None:
            self.process.send_signal(by)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def words(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def page(self, path):
        try:
            with within(self.namespace), urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    def metric(self, name):
        found = re.search(rf"^longhaul_operator_{name}(?:{{.*}})? (\S+)$", self.page("/metrics"), re.M)
        return float(found[1]) if found else None

    def memory(self):
        """(bytes now, the most that they were)."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return [1024 * int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) for key in ("VmRSS", "VmHWM")]


# --- Objects of people.
def profile(plane, name, **spec):
    thing = {"apiVersion": "longhaul.dev/v1alpha1", "kind": "TrainingProfile", "metadata": {"name": name},
             "spec": {"gpuResource": GPU, "maxGPUs": 10, "minGPUs": 3, **spec}}
    code, answer = plane.ask("POST", GROUP + "/namespaces/training/trainingprofiles", thing)
    assert code == 201, answer


def job(name, profile_name, gpus, script="exit 0", **spec):
    """Of alice."""
    return {"apiVersion": "longhaul.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": name, "annotations": {"longhaul.dev/requester": "alice"}},
            "spec": {"profileRef": {"name": profile_name}, "totalGPUs": gpus, "image": "registry.example/worker",
                     "script": {"inline": script}, **spec}}


def create(plane, thing, user="admin"):
    return plane.ask("POST", GROUP + "/namespaces/training/trainingjobs", thing, user=user)


def stamp(plane, thing):
    """As the operator's webhook does it: of the spec as the API server completes it."""
    code, whole = plane.ask("POST", GROUP + "/namespaces/training/trainingjobs?dryRun=All", thing)
    assert code == 201, whole
    annotations = thing["metadata"]["annotations"]

    def text(value):
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    said = text(["requester", "training", annotations["longhaul.dev/requester"], ""])
    for field, value in sorted(whole["spec"].items()):
        if field == "script":
            value = value["inline"]  # a short one, which is its own mark
        if field not in ("runPolicy", "elastic"):
            said += f"\n{text(field)}:{text(value)}"
    annotations["longhaul.dev/requester-proof"] = hmac.new(KEY, said.encode(), hashlib.sha256).hexdigest()
    return thing


def submit(plane, *things):
    for thing in things:
        code, answer = create(plane, stamp(plane, thing))
        assert code == 201, answer


def read(plane, path):
    code, found = plane.ask("GET", path)
    return found if code == 200 else None


def status(plane, name):
    found = read(plane, f"{GROUP}/namespaces/training/trainingjobs/{name}")
    return (found or {}).get("status", {})


def phase(plane, name):
    return status(plane, name).get("phase")


def condition(plane, name, kind):
    return next((one for one in status(plane, name).get("conditions", []) if one["type"] == kind), {})


def reaches(plane, name, *phases, seconds=60):
    assert eventually(lambda: phase(plane, name) in phases, seconds), json.dumps(status(plane, name), indent=1)


def events(plane, name):
    found = plane.ask("GET", f"/api/v1/namespaces/training/events?fieldSelector=involvedObject.name={name}")[1]["items"]
    return {event["reason"]: event["message"] for event in found}


def of_job(plane, kind, name):
    return read(plane, f"{kind}?labelSelector=longhaul.dev/job%3D{name}")["items"]


def pods(plane, name, role="worker"):
    found = of_job(plane, "/api/v1/namespaces/training/pods", name)
    return sorted((pod for pod in found if pod["metadata"]["labels"]["longhaul.dev/role"] == role), key=lambda pod: pod["metadata"]["name"])


def delete(plane, *names):
    for name in names:
        plane.ask("DELETE", f"{GROUP}/namespaces/training/trainingjobs/{name}", {"propagationPolicy": "Background"})
    assert eventually(lambda: all(phase(plane, name) is None for name in names))


def role_of(pod):
    return pod["metadata"].get("labels", {}).get("longhaul.dev/role")


# --- S7 to S11, S14: nodes, plan, start, end.
def test_s7_s9_15_gpus_run_as_10_and_5_and_are_cleaned_up(plane):
    for policy in ("All", "Running", "None"):
        profile(plane, f"clean-{policy.lower()}", cleanPolicy=policy)
    profile(plane, "no-retries", maxRetries=0)
    with Operator(plane), Machines(plane, {"a": 35, "b": 35}) as machines:
        submit(plane, *[job(f"to-{policy}", f"clean-{policy}", 15, script=f"echo {policy}") for policy in ("all", "running", "none")],
               job("to-fail", "no-retries", 15))
        for name in ("to-all", "to-running", "to-none", "to-fail"):
            reaches(plane, name, "Running")
        for name in ("to-all", "to-running", "to-none"):
            seen = pods(plane, name)
            assert [pod["spec"]["containers"][1]["resources"]["limits"][GPU] for pod in seen] == ["10", "5"]
            assert status(plane, name)["readyNodes"] == "2/2" and [node["gpus"] for node in status(plane, name)["nodes"]] == [10, 5]
        # S10, and what hangs on the job.
        plan = read(plane, "/api/v1/namespaces/training/configmaps/to-all-plan")
        assert plan["immutable"] and plan["data"]["script"] == "echo all"
        assert plan["data"]["planHash"] == status(plane, "to-all")["planHash"]
        assert [(node["name"], node["gpus"], node["rank"]) for node in json.loads(plan["data"]["nodes.json"])["nodes"]] == \
            [("to-all-node-0", 10, 0), ("to-all-node-1", 5, 1)]
        uid = read(plane, f"{GROUP}/namespaces/training/trainingjobs/to-all")["metadata"]["uid"]
        for kind in ("/api/v1/namespaces/training/pods", "/api/v1/namespaces/training/services", "/api/v1/namespaces/training/configmaps",
                     "/apis/apps/v1/namespaces/training/statefulsets", "/api/v1/namespaces/training/secrets"):
            for thing in of_job(plane, kind, "to-all"):
                [owner] = thing["metadata"]["ownerReferences"]
                assert owner["uid"] == uid or owner["kind"] == "StatefulSet", thing["metadata"]["name"]
        for pod in pods(plane, "to-all") + pods(plane, "to-all", "server"):
            spec = pod["spec"]
            assert spec["automountServiceAccountToken"] is False and spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["runAsUser"] > 0 and not any("token" in volume["name"] for volume in spec["volumes"])
            for container in spec["containers"] + spec["initContainers"]:
                assert container["securityContext"]["privileged"] is False
                assert not any("serviceaccount" in mount["mountPath"] for mount in container.get("volumeMounts", []))
        # The end.
        for name in ("to-all", "to-running", "to-none"):
            for rank in (0, 1):
                machines.end("training", f"{name}-node-{rank}", 0)
        machines.end("training", "to-fail-node-1", 7)
        for name in ("to-all", "to-running", "to-none"):
            reaches(plane, name, "Succeeded")
            assert eventually(lambda name=name: condition(plane, name, "CleanedUp").get("status") == "True"), name
        left = {name: [pod["status"]["phase"] for pod in pods(plane, name)] for name in ("to-all", "to-running", "to-none")}
        assert left == {"to-all": [], "to-running": ["Succeeded"] * 2, "to-none": ["Succeeded"] * 2}
        for name in left:
            assert not of_job(plane, "/apis/apps/v1/namespaces/training/statefulsets", name) and not pods(plane, name, "server")
        # A failure: what is over stays, for its log.
        reaches(plane, "to-fail", "Failed")
        assert eventually(lambda: [pod["metadata"]["name"] for pod in pods(plane, "to-fail")] == ["to-fail-node-1"])
        said = status(plane, "to-fail")
        assert said["reason"] == "RetriesExhausted"
        assert "exit code 7" in said["message"] and "kubectl logs to-fail-node-1" in said["message"]
        figure("S7-S9, S14: 15 GPUs, at most 10", pods="10 + 5", ends="Succeeded; cleaned All, Running, None as asked")
        delete(plane, "to-all", "to-running", "to-none", "to-fail")


def test_a_finished_job_goes_after_its_time_to_live(plane):
    profile(plane, "ttl")
    with Operator(plane), Machines(plane, {"a": 10}, outcome=lambda pod: (0.5, 0) if role_of(pod) == "worker" else None):
        submit(plane, job("ttl", "ttl", 3, runPolicy={"ttlSecondsAfterFinished": 2}))
        reaches(plane, "ttl", "Succeeded")
        assert eventually(lambda: phase(plane, "ttl") is None, seconds=20)


# --- S5, S6: the name, then the permission.
@pytest.fixture
def webhooks(plane, tmp_path):
    """Flags of an operator whose webhooks the API server asks: deploy/kubernetes/admission-webhook, with a URL in place of the Service."""
    port = free_port()
    plane.certificate("webhook", "/CN=webhook", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    for name, suffix in (("tls.crt", "crt"), ("tls.key", "key")):
        shutil.copy(plane.folder / f"webhook.{suffix}", tmp_path / name)
    bundle = base64.b64encode((plane.folder / "ca.crt").read_bytes()).decode()
    paths = []
    (tmp_path / "path").write_text("0123abcd")
    for thing, place in zip(load("admission-webhook/webhooks.yaml"), ("/mutate/0123abcd", "/validate/0123abcd")):
        for hook in thing["webhooks"]:
            hook["clientConfig"].pop("service")
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{place}", "caBundle": bundle}
        kind = thing["kind"].lower() + "s"
        code, answer = plane.ask("POST", "/apis/admissionregistration.k8s.io/v1/" + kind, thing)
        assert code == 201, answer
        paths.append(f"/apis/admissionregistration.k8s.io/v1/{kind}/{thing['metadata']['name']}")
    yield ["--webhook", f"127.0.0.1:{port}", "--webhook-certificates", str(tmp_path)]
    for path in paths:
        plane.ask("DELETE", path)


def reviews_asked(plane):
    """Of the API server's own counters."""
    text = plane.ask("GET", "/metrics")[1]
    of_reviews = r'^apiserver_request_total{[^}]*resource="subjectaccessreviews"[^}]*} (\S+)$'
    return sum(float(value) for value in re.findall(of_reviews, text, re.M))


def may_use(plane, user, profile_name):
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": user, "resourceAttributes": {
        "group": "longhaul.dev", "resource": "trainingprofiles", "namespace": "training", "verb": "use", "name": profile_name}}}
    return plane.ask("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)[1]["status"]["allowed"]


def test_s5_s6_the_name_then_the_permission_which_is_remembered(plane, webhooks):
    profile(plane, "asked")
    profile(plane, "other")
    thing = job("first", "asked", 15)
    del thing["metadata"]["annotations"]
    with Operator(plane, *webhooks) as operator:
        def ask(name, by, **spec):
            one = json.loads(json.dumps(thing))
            one["metadata"]["name"] = name
            one["spec"].update(spec)
            return create(plane, one, user=by)
        # The API server reads webhooks that are new within seconds, and alice is stamped from then on.
        assert eventually(lambda: ask("first", "alice")[0] == 201 and operator.metric("webhook_connections_total") or
                          plane.ask("DELETE", f"{GROUP}/namespaces/training/trainingjobs/first")[0] == 0)
        stamped = read(plane, f"{GROUP}/namespaces/training/trainingjobs/first")
        assert stamped["metadata"]["annotations"]["longhaul.dev/requester"] == "alice"
        assert len(stamped["metadata"]["annotations"]["longhaul.dev/requester-proof"]) == 64
        # bob may have jobs, and use no profile.
        bob = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}
        binding = {"metadata": {"name": "bob-trains"}, "subjects": [bob],
                   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "longhaul-user"}}
        assert plane.ask("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/training/rolebindings", binding)[0] == 201
        assert eventually(lambda: plane.ask("GET", GROUP + "/namespaces/training/trainingjobs", user="bob")[0] == 200)
        before = reviews_asked(plane)
        code, refusal = ask("first", "bob")
        assert code == 409 and "task name already exists" in refusal["message"] and "choose another name" in refusal["message"]
        assert reviews_asked(plane) == before  # S5 before S6
        code, refusal = ask("bobs", "bob")
        assert code == 403 and "bob may not use the training profile" in refusal["message"], refusal
        assert "ask for a role with the verb use on trainingprofiles/asked" in refusal["message"]
        assert reviews_asked(plane) == before + 1
        # A refusal is remembered for 30 s: with the role, another profile is asked for.
        permit(plane, "bob")
        assert eventually(lambda: may_use(plane, "bob", "other"))
        asked, hits = reviews_asked(plane), operator.metric("webhook_permission_hits_total")

        def begins(name):
            assert ask(name, "bob", profileRef={"name": "other"})[0] == 201
            assert eventually(lambda: condition(plane, name, "Authorized").get("status") == "True")
        begins("bobs")
        assert reviews_asked(plane) == asked + 2  # one of the webhook, with bob's groups, and one of the operator itself
        begins("bobs-second")
        assert reviews_asked(plane) == asked + 2
        assert eventually(lambda: operator.metric("webhook_permission_hits_total") == hits + 1)
        # What may not change, and what is wrong, in words.
        code, refusal = plane.ask("PATCH", f"{GROUP}/namespaces/training/trainingjobs/first", {"spec": {"totalGPUs": 20}}, user="alice",
                                  content="application/merge-patch+json")
        assert code == 422 and "totalGPUs" in refusal["message"], refusal
        figure("S5, S6: name, permission, cache", duplicate="409 before any SubjectAccessReview", second_time="0 SubjectAccessReviews")
        delete(plane, "first", "bobs", "bobs-second")


# --- Messages that name the remedy.
def bad_jobs():
    def inline(name, node, **more):
        one = job(name, "", 3, **more)
        del one["spec"]["profileRef"]
        one["spec"]["node"] = node
        return one
    template = {"spec": {"volumes": [{"name": "longhaul-key", "emptyDir": {}}]}}
    return {
        "too-few": (job("too-few", "small", 2), "TooFewGPUs", ["at least 3", "totalGPUs"]),
        "unsplit": (job("unsplit", "small", 5), "Unsplittable", ["4", "6"]),
        "reserved": (inline("reserved", {"maxGPUs": 4, "nodeTemplate": template}), "BadTemplate",
                     ["begins with longhaul-", "choose another name"]),
        "env": (inline("env", {"maxGPUs": 4, "nodeTemplate": {"spec": {"containers": [{"name": "trainer", "env": [
            {"name": "LONGHAUL_JOIN", "value": "x"}]}]}}}), "BadTemplate", ["LONGHAUL_", "choose another name"]),
        "second": (inline("second", {"maxGPUs": 4, "nodeTemplate": {"spec": {"containers": [{"name": "sidecar"}]}}}), "BadTemplate",
                   ["trainer"]),
        "host": (job("host", "small", 3, server={"expose": "HostNetwork"}), "BadTemplate", ["NodePort", "ask an administrator"]),
        "mallory": (job("mallory", "small", 3), "Unauthorized", ["ask an administrator", 'verb "use"', "trainingprofiles/small"]),
        "quota": (job("quota", "small", 9, sites=[{"name": "x", "gpus": 3}, {"name": "y", "gpus": 3}]), "InvalidSpec",
                  ["spec.sites", "raise gpus of a site"]),
        "late": (job("late", "small", 6, runPolicy={"startDeadlineSeconds": 4}), "StartDeadlineExceeded", ["Insufficient " + GPU]),
    }


def test_what_is_wrong_is_said_with_its_remedy(plane):
    profile(plane, "small", maxGPUs=4)
    bad = bad_jobs()
    bad["mallory"][0]["metadata"]["annotations"]["longhaul.dev/requester"] = "mallory"
    with Operator(plane), Machines(plane, {"a": 3}):
        submit(plane, *[one for one, _, _ in bad.values()], job("no-profile", "none", 3))
        # Without the webhook any name may stand there.
        assert create(plane, job("forged", "small", 3))[0] == 201
        bad["forged"] = (None, "Unauthorized", ["lacks the stamp", "deploy/kubernetes/admission-webhook"])
        for name, (_, reason, words) in bad.items():
            reaches(plane, name, "Failed")
            said = status(plane, name)
            assert said["reason"] == reason, said
            assert all(word in said["message"] for word in words), said["message"]
            failed = condition(plane, name, "Failed")
            assert failed["status"] == "True" and failed["message"] == said["message"]
            text = said["message"][:200]
            assert eventually(lambda name=name, text=text: any(text in words for words in events(plane, name).values())), name
        assert eventually(lambda: condition(plane, "no-profile", "Planned").get("reason") == "ProfileNotFound")
        assert "create it" in condition(plane, "no-profile", "Planned")["message"]
        code, words = plane.kubectl("describe", "trainingjob", "unsplit", "-n", "training")
        assert code == 0 and "Unsplittable" in words
        profile(plane, "none")  # the remedy
        reaches(plane, "no-profile", "Running")
        code, answer = plane.ask("DELETE", GROUP + "/namespaces/training/trainingprofiles/none")
        assert code == 200, answer
        assert eventually(lambda: condition(plane, "no-profile", "Degraded").get("reason") == "ProfileNotFound")
        assert phase(plane, "no-profile") == "Running"
        profile(plane, "none")
        assert eventually(lambda: condition(plane, "no-profile", "Degraded").get("status") == "False")
        figure("messages", mistakes=len(bad) + 1, seen_in="status, condition, Event")
        delete(plane, "no-profile", *bad)


# --- Kills.
class Doubles:
    """Of every worker pod that was ever there, told by a watch of its own: how often one was made for a node's incarnation."""

    def __init__(self, plane):
        self.made = {}
        self.watch = Watch(plane, "/api/v1/pods", self.on_event)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.watch.stop()

    def on_event(self, _, pod):
        labels = pod["metadata"].get("labels", {})
        if role_of(pod) == "worker":
            key = tuple(labels["longhaul.dev/" + name] for name in ("job", "job-uid", "rank", "incarnation"))
            self.made.setdefault(key, set()).add(pod["metadata"]["uid"])

    def check(self):
        twice = {key: uids for key, uids in self.made.items() if len(uids) > 1}
        assert not twice, twice


def seed_of_run():
    seed = int(os.environ.get("LONGHAUL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"LONGHAUL_SEED={seed}")
    return seed


KILLS, KILLED_JOBS = 50, 25


def fate(index, rank, incarnation):
    """What becomes of a node's pod: (seconds, exit code), None in place of the code: evicted. The same with and without kills."""
    chance = random.Random(f"{index}.{rank}.{incarnation}")
    if index % 5 == 4 and rank == 0:
        return 0.5, 9  # until its retries are over
    if incarnation == 1 and (index + rank) % 3 == 0:
        return 0.5, 3
    if incarnation == 1 and (index + rank) % 3 == 1:
        return 0.5, None
    return 2 + chance.random(), 0


def end_of(plane, name):
    said = status(plane, name)
    nodes = said["nodes"][:1] if said["phase"] == "Failed" else said["nodes"]  # the other one ends wherever it was
    counts = [(node["phase"], node["retries"], node["disruptions"], node.get("lastExitCode")) for node in nodes]
    return said["phase"], said["reason"], counts


def test_an_operator_that_is_killed_50_times_does_what_one_does_that_lives(plane):
    chance = random.Random(seed_of_run())
    for policy in ("All", "Running", "None"):
        profile(plane, f"killed-{policy.lower()}", maxGPUs=3, maxRetries=1, cleanPolicy=policy)

    def outcome(pod):
        labels = pod["metadata"]["labels"]
        if role_of(pod) != "worker":
            return None
        index, rank, incarnation = (int(labels["longhaul.dev/" + name].split("-")[-1]) for name in ("job", "rank", "incarnation"))
        return fate(index, rank, incarnation)

    def job_of(kind, index):
        return job(f"{kind}-{index}", f"killed-{('all', 'running', 'none')[index % 3]}", 6)
    calm, killed = ([f"{kind}-{index}" for index in range(KILLED_JOBS)] for kind in ("calm", "killed"))
    over = ("Succeeded", "Failed")
    with Machines(plane, {"a": 1000}, outcome=outcome), Doubles(plane) as doubles:
        with Operator(plane) as operator:
            submit(plane, *[job_of("calm", index) for index in range(KILLED_JOBS)])
            for name in calm:
                reaches(plane, name, *over)
            assert eventually(lambda: all(condition(plane, name, "CleanedUp").get("status") == "True" for name in calm))
            calls = operator.metric("api_requests_total") / KILLED_JOBS
        at_kill = {}
        begun = time.monotonic()
        for kill in range(KILLS):
            if kill % 2 == 0:
                submit(plane, job_of("killed", kill // 2))
            operator = Operator(plane)
            # While it begins, or works.
            if kill % 2 == 1:
                eventually(lambda one=operator: one.metric("leads") == 1, every=0.02)
            time.sleep(chance.uniform(0, 0.4) if kill % 2 == 0 else chance.uniform(0, 1))
            operator.end(signal.SIGKILL)
            for one in read(plane, GROUP + "/namespaces/training/trainingjobs")["items"]:
                if one["metadata"]["name"].startswith("killed-"):
                    seen = one.get("status", {}).get("phase", "new")
                    at_kill[seen] = at_kill.get(seen, 0) + 1
        with Operator(plane) as operator:
            for name in killed:
                reaches(plane, name, *over, seconds=90)
            assert eventually(lambda: all(condition(plane, name, "CleanedUp").get("status") == "True" for name in killed))
            wall = time.monotonic() - begun
        doubles.check()
    # Where a job fails, its other node may be between two pods.
    done = {name for name in calm + killed if phase(plane, name) == "Succeeded"}
    made = {kind: sum(key[0].startswith(kind) and key[0] in done for key in doubles.made) for kind in ("calm", "killed")}
    for one, other in zip(calm, killed):
        assert end_of(plane, one) == end_of(plane, other), (one, events(plane, one), other, events(plane, other))
    assert made["calm"] == made["killed"]
    assert {"Provisioning", "Running"} <= at_kill.keys(), at_kill
    phases = ", ".join(f"{name} {n}" for name, n in sorted(at_kill.items()))
    pods_of_killed = sum(key[0].startswith("killed") for key in doubles.made)
    figure("kill -9 of the operator", kills=KILLS, jobs=KILLED_JOBS, jobs_phases_at_kills=phases, pods=pods_of_killed, pods_doubled=0,
           jobs_stuck=0, ends_that_differ=0, seconds=f"{wall:.0f}")
    figure("a job from its creation to its cleanup", nodes=2, API_calls=f"{calls:.0f}")
    delete(plane, *calm, *killed)


def test_the_api_server_is_killed_during_a_watch(plane):
    profile(plane, "restart")
    names = [f"restart-{index}" for index in range(4)]
    with Operator(plane) as operator, Machines(plane, {"a": 100}) as machines, Doubles(plane) as doubles:
        submit(plane, *[job(name, "restart", 6) for name in names[:3]])
        for name in names[:3]:
            reaches(plane, name, "Running")
        plane.kill_api_server()
        time.sleep(3)
        for name in names[:2]:
            machines.end("training", f"{name}-node-0", 0)  # the API server hears of it once it is back
        begun = time.monotonic()
        plane.start_api_server()
        back = time.monotonic() - begun
        submit(plane, job(names[3], "restart", 6))
        for name in names[:2]:
            reaches(plane, name, "Succeeded")
        reaches(plane, names[3], "Running")
        for name in names[2:]:
            machines.end("training", f"{name}-node-0", 0)
            reaches(plane, name, "Succeeded")
        assert operator.process.poll() is None
        doubles.check()
        for name in names:
            assert all(node["retries"] == node["disruptions"] == 0 for node in status(plane, name)["nodes"]), status(plane, name)
        figure("kill -9 of the API server", pods_doubled=0, nodes_disturbed=0, server_back_after=f"{back:.1f} s")
        delete(plane, *names)


# --- The process itself.
def test_the_lease_is_handed_over(plane):
    profile(plane, "lease")
    with Operator(plane, identity="operator-0") as first:
        second = Operator(plane, identity="operator-1")
        try:
            assert eventually(lambda: second.metric("leads") == 0)
            assert first.metric("leads") == 1
            time.sleep(2.5)  # somewhere between two renewals
            killed = time.monotonic()
            first.end(signal.SIGKILL)
            submit(plane, job("lease", "lease", 3))
            assert eventually(lambda: second.metric("leads") == 1, seconds=30)
            taken = time.monotonic() - killed
            assert eventually(lambda: phase(plane, "lease") is not None)
            works = time.monotonic() - killed
        finally:
            second.end(signal.SIGTERM)
        assert works <= 20
        figure("lease after kill -9 of its holder", taken_after=f"{taken:.1f} s", works_after=f"{works:.1f} s", at_most="20 s")
        delete(plane, "lease")
    # One that ends in order gives it up.
    with Operator(plane, identity="operator-2") as last:
        assert last.metric("lease_acquired_total") == 1


def test_it_starts_in_100_ms(plane):
    versions, answers = [], []
    for _ in range(9):
        begun = time.monotonic()
        subprocess.run([str(PROGRAMS / "longhaul-operator"), "--version"], check=True, capture_output=True)
        versions.append(time.monotonic() - begun)
        operator = Operator(plane, identity="operator-start")
        while not operator.page("/healthz"):
            assert operator.process.poll() is None and time.monotonic() - operator.begun < 10
        answers.append(time.monotonic() - operator.begun)
        operator.end(signal.SIGKILL)
    def said(times):
        return f"median {1000 * sorted(times)[len(times) // 2]:.0f} ms, least {1000 * min(times):.0f} ms"
    figure("start", to_the_answer_of_version=said(versions), to_the_first_answer_of_healthz=said(answers), at_most="100 ms")
    assert min(answers) <= 0.1  # what more it takes is its neighbours'


# --- S12, S13, S15: a real training, in processes.
needs_processes = pytest.mark.skipif(not CAN_HAVE_PROCESSES,
                                     reason="NO PROCESSES: pods of processes take root (mounts), and the package dataset-fashion-mnist")


def training_profile(plane, name, **spec):
    """Ranks on the CPU: a node of three, small."""
    trainer = {"name": "trainer", "env": [{"name": "DATA", "value": "/data"}, {"name": "OMP_NUM_THREADS", "value": "1"}]}
    profile(plane, name, maxGPUs=3, nodeTemplate={"spec": {"containers": [trainer]}}, **spec)


def training(name, profile_name, rounds, **spec):
    script = f"#!/bin/sh\nexec longhaul-trainer --data \"$DATA\" --rounds {rounds} --batch 16 --eval-every 0 --progress json\n"
    return job(name, profile_name, 6, script=script, **{"data": {"claimName": "images"}, "server": {"storage": {"size": "1Gi"}}, **spec})


def give_data(plane, machines):
    folder = machines.claim_folder("training", "images")
    for file in DATASET.iterdir():
        if not (folder / file.name).exists():
            (folder / file.name).symlink_to(file)
    plane.ask("POST", "/api/v1/namespaces/training/persistentvolumeclaims", claim("images"))


# Trains until a file among its data says that it ends.
UNTIL_TOLD = """#!/usr/bin/python3
import os, time, longhaul, numpy
with longhaul.connect() as client:
    weights = numpy.zeros(10000, numpy.float32)
    tensor = client.declare("weights", initial=weights, optimizer="sgd:lr=0.1")
    while not os.path.exists(os.environ["DATA"] + "/stop-{name}"):
        client.push_pull(tensor, numpy.ones(10000, numpy.float32), weights).wait()
        time.sleep(0.1)
"""


def tell_to_end(name, *all_machines):
    for machines in all_machines:
        (machines.claim_folder("training", "images") / f"stop-{name}").touch()


def lines(machines, pod, container, event):
    """Of its log: the JSON lines with this event."""
    found = []
    for line in machines.log("training", pod, container).splitlines():
        with contextlib.suppress(ValueError):
            one = json.loads(line)
            if one.get("event") == event:
                found.append(one)
    return found


ROUNDS = 600


def rounds(machines, name):
    """Of the server's log, in its order, over all its pods."""
    return [one["round"] for one in lines(machines, f"{name}-server-0", "server", "round")]


def joins(machines, name):
    return [(one["rank"], one["incarnation"]) for one in lines(machines, f"{name}-server-0", "server", "join")]


def trains_to(machines, name, least, seconds=60):
    there = eventually(lambda: max(rounds(machines, name), default=0) >= least, seconds)
    assert there, machines.log("training", f"{name}-server-0", "server")[-3000:]


@needs_processes
def test_s12_s13_s15_two_nodes_train_through_a_lost_server_and_a_lost_node(plane):
    training_profile(plane, "train")
    with Operator(plane), Machines(plane, {"a": 3, "b": 3}, processes=True) as machines:
        give_data(plane, machines)
        submit(plane, training("train", "train", ROUNDS))
        reaches(plane, "train", "Running")
        trains_to(machines, "train", 100)
        # The server's pod goes: another address, the same claim.
        [before] = pods(plane, "train", "server")
        plane.ask("DELETE", "/api/v1/namespaces/training/pods/train-server-0")
        old = before["metadata"]["uid"]
        assert eventually(lambda: [pod["metadata"]["uid"] for pod in pods(plane, "train", "server")] not in ([], [old]))
        acknowledged = max(rounds(machines, "train"))
        trains_to(machines, "train", acknowledged + 100)
        [after] = pods(plane, "train", "server")
        assert before["status"]["podIP"] != after["status"]["podIP"]
        assert all(node["retries"] == node["disruptions"] == 0 for node in status(plane, "train")["nodes"])
        # A node's processes go.
        machines.find("training", "train-node-1").kill_now()
        assert eventually(lambda: status(plane, "train")["nodes"][1]["retries"] == 1)
        assert eventually(lambda: "NodeFailed" in events(plane, "train"))
        reaches(plane, "train", "Succeeded", seconds=120)
        said = status(plane, "train")
        assert [(node["retries"], node["disruptions"]) for node in said["nodes"]] == [(0, 0), (1, 0)]
        assert "round" in said["progress"]  # it is read every 30 s, which is about as long as this takes
        assert {(1, 1), (1, 2)} <= set(joins(machines, "train"))
        # Each process counts its own.
        assert len(rounds(machines, "train")) == ROUNDS, "a round is missing, or was done twice"
        trained = [one for node in (0, 1) for one in lines(machines, f"train-node-{node}", "trainer", "round")]
        loss = f"{trained[0]['training_loss']:.2f} -> {trained[-1]['training_loss']:.2f}"
        figure("S12, S13, S15: a training in processes", nodes="2 x 3 ranks", rounds=ROUNDS, rounds_lost=0,
               server_pod_deleted_at_round=acknowledged, node_killed="1 retry", loss=loss)
        delete(plane, "train")


# --- Several clusters: one job over two sites, each with a control plane of its own, and a WAN between them.
SITES = ("A", "B")
WAN = {"--rate": "50mbit", "--delay": "25ms", "--loss": "1%"}  # each way: a round trip of 50 ms


@pytest.fixture(scope="module")
def wan(tmp_path_factory):
    """{site: (address, network namespace)} of a longhaul-wan, which cleans up after itself, also when it is killed."""
    folder = tmp_path_factory.mktemp("wan")
    tag = f"t2_{os.getpid()}"
    command = [str(PROGRAMS / "longhaul-wan"), "up", "--sites", ",".join(SITES), "--tag", tag, "--state-dir", str(folder), "--quiet",
               *[word for pair in WAN.items() for word in pair]]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=dies_with_its_parent)
    try:
        assert eventually(lambda: (folder / f"{tag}.json").exists() or process.poll() is not None) and process.poll() is None
        state = json.loads((folder / f"{tag}.json").read_text())
        yield {site["name"]: (site["address"], site["namespace_path"]) for site in state["sites"]}
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def sites(wan):
    """The job's own cluster in site A, and the other one in B, whose kubeconfig stands in a Secret of A's."""
    with contextlib.ExitStack() as stack:
        home, away = (stack.enter_context(ControlPlane(address=wan[site][0], namespace=wan[site][1])) for site in SITES)
        install(home)
        for thing in load("examples/permission.yaml")[:1] + load("rbac/remote-site.yaml"):
            code, words = away.kubectl("apply", "-f", "-", text=json.dumps(thing))
            assert code == 0, words
        code, words = home.kubectl("apply", "-f", str(FOLDER / "rbac/site.yaml"))
        assert code == 0, words
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "site-frankfurt"},
                  "stringData": {"kubeconfig": away.kubeconfig_without_files("site")}}
        assert home.ask("POST", "/api/v1/namespaces/training/secrets", secret)[0] == 201
        training_profile(home, "wan")
        yield home, away


def over_sites(name, count, **spec):
    quotas = [{"name": "amsterdam", "gpus": 3}, {"name": "frankfurt", "gpus": 3, "kubeconfigSecret": "site-frankfurt"}]
    return training(name, "wan", count, sites=quotas, **{"server": {"expose": "LoadBalancer", "storage": {"size": "1Gi"}}, **spec})


@contextlib.contextmanager
def machines_of(sites, wan):
    home, away = sites
    with Machines(home, {"a": 6}, processes=True, site=wan["A"]) as here, Machines(away, {"b": 6}, processes=True, site=wan["B"]) as there:
        for plane, machines in ((home, here), (away, there)):
            give_data(plane, machines)
        yield here, there


@needs_processes
def test_one_job_over_two_clusters_and_a_wan(sites, wan):
    home, away = sites
    with Operator(home, namespace=wan["A"][1]), machines_of(sites, wan) as (here, there):
        begun = time.monotonic()
        submit(home, over_sites("wide", 100))
        reaches(home, "wide", "Running")
        [mine], [other] = pods(home, "wide"), pods(away, "wide")
        assert [pod["metadata"]["labels"]["longhaul.dev/site"] for pod in (mine, other)] == ["amsterdam", "frankfurt"]
        assert [owner["name"] for owner in other["metadata"]["ownerReferences"]] == ["wide-anchor"]
        assert f"{wan['A'][0]}:7700" in other["spec"]["containers"][0]["command"]
        reaches(home, "wide", "Succeeded", seconds=120)
        seconds = time.monotonic() - begun
        assert [(node["site"], node["phase"], node["retries"]) for node in status(home, "wide")["nodes"]] == \
            [("amsterdam", "Succeeded", 0), ("frankfurt", "Succeeded", 0)]
        assert [one["contributors"] for one in lines(here, "wide-server-0", "server", "round")] == [2] * 100
        figure("two clusters, one job", wan=", ".join(f"{key[2:]} {value}" for key, value in WAN.items()) + " each way", rounds=100,
               ends="Succeeded", seconds=f"{seconds:.0f}")
        delete(home, "wide")
        assert eventually(lambda: not pods(away, "wide") and read(away, "/api/v1/namespaces/training/configmaps/wide-anchor") is None)


@needs_processes
def test_a_site_that_goes_away_is_named_and_the_job_goes_on_or_waits(sites, wan):
    home, away = sites
    names = ("elastic", "patient")
    with Operator(home, namespace=wan["A"][1]), machines_of(sites, wan) as (here, there):
        for name, port in zip(names, (7700, 7701)):
            one = over_sites(name, 0, server={"expose": "LoadBalancer", "port": port, "storage": {"size": "1Gi"}},
                             **({"elastic": {"minNodes": 1}} if name == "elastic" else {}))
            one["spec"]["script"] = {"inline": UNTIL_TOLD.replace("{name}", name)}
            submit(home, one)
        for name in names:
            reaches(home, name, "Running")
            trains_to(here, name, 10)
        # The API server of B and all that runs there.
        away.kill_api_server()
        gone = time.monotonic()
        for name in names:
            there.find("training", f"{name}-node-1").kill_now()
        for name in names:
            assert eventually(lambda name=name: condition(home, name, "Degraded").get("reason") == "SiteUnreachable"), status(home, name)
            assert "site frankfurt does not answer" in condition(home, name, "Degraded")["message"]
        named = time.monotonic() - gone
        before = {name: max(rounds(here, name)) for name in names}
        for name in names:
            trains_to(here, name, before[name] + 50)
        tell_to_end("elastic", here)
        reaches(home, "elastic", "Succeeded", seconds=120)
        ended = time.monotonic() - gone
        assert [node["phase"] for node in status(home, "elastic")["nodes"]] == ["Succeeded", "Lost"]
        # The other one waits, and goes on when the site is back.
        assert phase(home, "patient") in ("Running", "Restarting") and condition(home, "patient", "Degraded")["status"] == "True"
        away.start_api_server()
        assert eventually(lambda: condition(home, "patient", "Degraded").get("status") == "False")
        assert eventually(lambda: status(home, "patient")["nodes"][1]["retries"] == 1)
        reaches(home, "patient", "Running")
        assert eventually(lambda: (1, 2) in joins(here, "patient"))
        tell_to_end("patient", here, there)
        reaches(home, "patient", "Succeeded", seconds=60)
        assert [(node["phase"], node["retries"]) for node in status(home, "patient")["nodes"]] == [("Succeeded", 0), ("Succeeded", 1)]
        figure("a site goes away", named_after=f"{named:.0f} s", elastic=f"Succeeded without it, after {ended:.0f} s",
               not_elastic="waited, 1 retry, Succeeded")
        delete(home, *names)


def test_nothing_is_left_of_jobs_that_were_deleted(plane):
    for kind in ("/api/v1/pods", "/api/v1/services", "/api/v1/configmaps", "/api/v1/secrets", "/apis/apps/v1/statefulsets",
                 "/api/v1/persistentvolumeclaims"):
        def left(path=kind):
            return [thing["metadata"]["name"] for thing in read(plane, path + "?labelSelector=longhaul.dev/job")["items"]]
        assert eventually(lambda: not left(), seconds=90), left()


# --- A thousand jobs.
def milliseconds(operator, name):
    return f"{1000 * operator.metric(name + '_seconds'):.2f} ms"


def test_a_thousand_jobs_are_queued(plane):
    """They wait for GPUs, of which there are none: each is looked at again and again."""
    count = int(os.environ.get("LONGHAUL_JOBS", 1000))
    profile(plane, "queue", maxGPUs=3)
    thing = stamp(plane, job("queued", "queue", 3, allocation={"capacity": "Discovered"}))
    with Operator(plane) as operator, Machines(plane, {"a": 0}):
        before = {name: operator.metric(name) or 0 for name in ("api_requests_total", "reconciles_total")}
        requests, begun = Requests(plane), time.monotonic()
        for index in range(count):
            thing["metadata"]["name"] = f"queued-{index}"
            assert requests.ask("POST", GROUP + "/namespaces/training/trainingjobs", thing)[0] == 201
        submitted = time.monotonic() - begun

        def waiting():
            found = read(plane, GROUP + "/namespaces/training/trainingjobs")["items"]
            said = [{one["type"]: one["reason"] for one in job.get("status", {}).get("conditions", [])}.get("Planned") for job in found]
            return said.count("TooFewGPUs") + said.count("NotEnoughCapacity") >= count
        assert eventually(waiting, seconds=120, every=1), operator.words()
        wall = time.monotonic() - begun
        after = {name: operator.metric(name) - value for name, value in before.items()}
        writes = milliseconds(operator, "pass_p99")
        time.sleep(10)  # each once more
        later = {name: operator.metric(name) - value for name, value in before.items()}
        now_bytes, most_bytes = operator.memory()
        figure("1,000 jobs queued", jobs=count, submitted_in=f"{submitted:.0f} s", all_said_to_wait_after=f"{wall:.0f} s",
               reconcile_p50=milliseconds(operator, "reconcile_p50"), reconcile_p99=milliseconds(operator, "reconcile_p99"),
               with_its_writes_p99=writes, API_calls_per_job=f"{after['api_requests_total'] / count:.1f}",
               reconciles_per_job=f"{after['reconciles_total'] / count:.1f}",
               API_calls_per_job_in_10_s_of_waiting=f"{(later['api_requests_total'] - after['api_requests_total']) / count:.2f}",
               memory=f"{now_bytes / 2**20:.0f} MB, at most {most_bytes / 2**20:.0f} MB")
        assert most_bytes <= 50 * 2**20
