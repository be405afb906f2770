"""The operator at a real API server, with the real controllers and scheduler (T2). Skipped, as a whole, where `tools/dev kube` has not
prepared one. Machines and their pods are tests/kubernetes/pod_processes.py; named after the requirements S1 to S17.

LONGHAUL_SEED=N replays the random points of a run. With LONGHAUL_WRITE_RESULTS=1 docs/results/kubernetes_t2.json is written at the end.
"""
import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request

import evidence
import pytest
from control_plane import ControlPlane, cache, command_within, dies_with_its_parent, free_port, within
from pod_processes import GPU, Machines, Watch, name_of
from resources import FOLDER, load

if cache() is None:
    pytest.skip("NO CONTROL PLANE: nothing here has run; `tools/dev kube` prepares one (10 minutes, once)", allow_module_level=True)
if not (pathlib.Path(os.environ.get("LONGHAUL_PROGRAMS", "/none")) / "longhaul-operator").exists():
    pytest.skip("NO OPERATOR: LONGHAUL_PROGRAMS names no folder with longhaul-operator", allow_module_level=True)

PROGRAMS = pathlib.Path(os.environ["LONGHAUL_PROGRAMS"]).absolute()
GROUP = "/apis/longhaul.dev/v1alpha1"
FIGURES = {}  # {test: {what: measured}}
BEGUN = time.monotonic()


def figure(test, **measured):
    FIGURES.setdefault(test, {}).update({what.replace("_", " "): value for what, value in measured.items()})
    print(f"{test}: {measured}")


def eventually(what, seconds=60, every=0.1):
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found or time.monotonic() > end:
            return found
        time.sleep(every)


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
    return plane


def permit(plane, user, namespace="training"):
    """Any profile of the namespace."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/"
    role = {"metadata": {"name": f"{user}-uses"}, "rules": [{"apiGroups": ["longhaul.dev"], "resources": ["trainingprofiles"], "verbs": ["use"]}]}
    binding = {"metadata": {"name": f"{user}-uses"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": f"{user}-uses"}}
    assert plane.ask("POST", rbac + "roles", role)[0] == 201 and plane.ask("POST", rbac + "rolebindings", binding)[0] == 201


@pytest.fixture(scope="module")
def plane():
    with ControlPlane() as one:
        yield install(one)
    if evidence.write("t2", FIGURES, time.monotonic() - BEGUN):
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

    def __exit__(self, *_):
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
    """As the webhook has stamped it."""
    return {"apiVersion": "longhaul.dev/v1alpha1", "kind": "TrainingJob",
            "metadata": {"name": name, "annotations": {"longhaul.dev/requester": "alice"}},
            "spec": {"profileRef": {"name": profile_name}, "totalGPUs": gpus, "image": "registry.example/worker", "script": {"inline": script}, **spec}}


def create(plane, thing, user="admin"):
    return plane.ask("POST", GROUP + "/namespaces/training/trainingjobs", thing, user=user)


def submit(plane, *things):
    for thing in things:
        code, answer = create(plane, thing)
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
        assert plan["immutable"] and plan["data"]["script"] == "echo all" and plan["data"]["planHash"] == status(plane, "to-all")["planHash"]
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
        assert said["reason"] == "RetriesExhausted" and "exit code 7" in said["message"] and "kubectl logs to-fail-node-1" in said["message"]
        figure("S7-S9, S14: 15 GPUs, at most 10", pods="10 + 5", ends="Succeeded; cleaned All, Running, None as asked")
        delete(plane, "to-running", "to-none", "to-fail")
        assert eventually(lambda: not of_job(plane, "/api/v1/namespaces/training/pods", "to-none"), seconds=90)


def test_a_finished_job_goes_after_its_time_to_live(plane):
    profile(plane, "ttl")
    with Operator(plane), Machines(plane, {"a": 10}, outcome=lambda pod: (0.5, 0) if role_of(pod) == "worker" else None):
        submit(plane, job("ttl", "ttl", 3, runPolicy={"ttlSecondsAfterFinished": 2}))
        reaches(plane, "ttl", "Succeeded")
        assert eventually(lambda: phase(plane, "ttl") is None, seconds=20)
        assert eventually(lambda: read(plane, "/api/v1/namespaces/training/configmaps/ttl-plan") is None, seconds=90)


# --- S5, S6: the name, then the permission.
@pytest.fixture
def webhooks(plane, tmp_path):
    """Flags of an operator whose webhooks the API server asks: deploy/kubernetes/admission-webhook, with a URL in place of the Service."""
    port = free_port()
    plane.certificate("webhook", "/CN=webhook", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    for name, suffix in (("tls.crt", "crt"), ("tls.key", "key")):
        shutil.copy(plane.folder / f"webhook.{suffix}", tmp_path / name)
    import base64
    bundle = base64.b64encode((plane.folder / "ca.crt").read_bytes()).decode()
    paths = []
    for thing in load("admission-webhook/webhooks.yaml"):
        for hook in thing["webhooks"]:
            place = hook["clientConfig"].pop("service")["path"]
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
    return sum(float(value) for value in re.findall(r'^apiserver_request_total{[^}]*resource="subjectaccessreviews"[^}]*} (\S+)$', text, re.M))


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
        # bob may have jobs, and use no profile.
        binding = {"metadata": {"name": "bob-trains"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}],
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
        # A refusal is remembered for 30 s. With the role another profile of his is asked for.
        permit(plane, "bob")
        assert eventually(lambda: ask("bobs", "bob", profileRef={"name": "other"})[0] == 201)
        asked, hits = reviews_asked(plane), operator.metric("webhook_permission_hits_total")
        assert ask("bobs-second", "bob", profileRef={"name": "other"})[0] == 201
        assert operator.metric("webhook_permission_hits_total") == hits + 1
        time.sleep(2)  # the operator itself asks once for each requester, too
        assert reviews_asked(plane) <= asked + 1
        assert ask("bobs-third", "bob", profileRef={"name": "other"})[0] == 201
        time.sleep(1)
        settled = reviews_asked(plane)
        assert ask("bobs-fourth", "bob", profileRef={"name": "other"})[0] == 201
        assert eventually(lambda: condition(plane, "bobs-fourth", "Authorized").get("status") == "True")
        assert reviews_asked(plane) == settled
        # What may not change, and what is wrong, in words.
        code, refusal = plane.ask("PATCH", f"{GROUP}/namespaces/training/trainingjobs/first", {"spec": {"totalGPUs": 20}}, user="alice",
                                  content="application/merge-patch+json")
        assert code == 422 and "totalGPUs" in refusal["message"], refusal
        figure("S5, S6: name, permission, cache", duplicate="409 before any SubjectAccessReview", second_time="0 SubjectAccessReviews")
        delete(plane, "first", "bobs", "bobs-second", "bobs-third", "bobs-fourth")


# --- Messages that name the remedy.
def bad_jobs():
    def inline(name, node, **more):
        one = job(name, "", 3, **more)
        del one["spec"]["profileRef"]
        one["spec"]["node"] = node
        return one
    template = {"metadata": {"labels": {"longhaul.dev/rank": "7"}}}
    return {
        "too-few": (job("too-few", "small", 2), "TooFewGPUs", ["at least 3", "totalGPUs"]),
        "unsplit": (job("unsplit", "small", 5), "Unsplittable", ["4", "6"]),
        "reserved": (inline("reserved", {"maxGPUs": 4, "nodeTemplate": template}), "BadTemplate", ["longhaul.dev/rank", "choose another name"]),
        "env": (inline("env", {"maxGPUs": 4, "nodeTemplate": {"spec": {"containers": [{"name": "trainer", "env": [
            {"name": "LONGHAUL_JOIN", "value": "x"}]}]}}}), "BadTemplate", ["LONGHAUL_", "choose another name"]),
        "second": (inline("second", {"maxGPUs": 4, "nodeTemplate": {"spec": {"containers": [{"name": "sidecar"}]}}}), "BadTemplate", ["trainer"]),
        "host": (job("host", "small", 3, server={"expose": "HostNetwork"}), "BadTemplate", ["NodePort", "ask an administrator"]),
        "mallory": (job("mallory", "small", 3), "Unauthorized", ["ask an administrator", 'verb "use"', "trainingprofiles/small"]),
        "quota": (job("quota", "small", 9, sites=[{"name": "x", "gpus": 3}, {"name": "y", "gpus": 3}]), None, ["quotas", "spec.sites"]),
        "late": (job("late", "small", 6, runPolicy={"startDeadlineSeconds": 4}), "StartDeadlineExceeded", ["Insufficient " + GPU]),
    }


def test_what_is_wrong_is_said_with_its_remedy(plane):
    profile(plane, "small", maxGPUs=4)
    bad = bad_jobs()
    bad["mallory"][0]["metadata"]["annotations"]["longhaul.dev/requester"] = "mallory"
    with Operator(plane), Machines(plane, {"a": 3}):
        submit(plane, *[one for one, _, _ in bad.values()], job("no-profile", "none", 3))
        for name, (_, reason, words) in bad.items():
            reaches(plane, name, "Failed")
            said = status(plane, name)
            assert reason in (None, said["reason"]), said
            assert all(word in said["message"] for word in words), said["message"]
            failed = condition(plane, name, "Failed")
            assert failed["status"] == "True" and failed["message"] == said["message"]
            assert eventually(lambda name=name, text=said["message"]: any(text[:200] in words for words in events(plane, name).values())), name
        assert eventually(lambda: condition(plane, "no-profile", "Planned").get("reason") == "ProfileNotFound")
        assert "create it" in condition(plane, "no-profile", "Planned")["message"]
        code, words = plane.kubectl("describe", "trainingjob", "unsplit", "-n", "training")
        assert code == 0 and "Unsplittable" in words
        profile(plane, "none")  # the remedy
        reaches(plane, "no-profile", "Running")
        figure("messages", mistakes=len(bad) + 1, seen_in="status, condition, Event")
        delete(plane, "no-profile", *bad)
