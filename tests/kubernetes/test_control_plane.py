"""deploy/kubernetes at a real API server (T2). Skipped, as a whole, where `tools/dev kube` has not prepared one.

The tests follow each other: what is applied in one is there in the next.
"""
import base64
import os
import re
import subprocess

import pytest
from control_plane import ControlPlane, cache, eventually
from resources import BAD, FOLDER, changed, crd, example, load, schema_of
from schema import children

if cache() is None:
    pytest.skip("NO CONTROL PLANE: nothing here has run; `tools/dev kube` prepares one (10 minutes, once)", allow_module_level=True)

GROUP = "/apis/longhaul.dev/v1alpha1"
JOBS, PROFILES = GROUP + "/namespaces/training/trainingjobs", GROUP + "/namespaces/training/trainingprofiles"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PERMISSIONS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@pytest.fixture(scope="module")
def plane():
    with ControlPlane() as one:
        yield one


@pytest.fixture(scope="module")
def installed(plane):
    """As a user does it."""
    code, words = plane.kubectl("apply", "--validate=false", "-k", str(FOLDER))
    assert code == 0, words
    code, words = plane.kubectl("apply", "-f", str(FOLDER / "examples/permission.yaml"))
    assert code == 0, words
    for plural in ("trainingjobs", "trainingprofiles"):
        def established(name=plural):
            conditions = plane.ask("GET", f"{DEFINITIONS}/{name}.longhaul.dev")[1]["status"].get("conditions", [])
            return {c["type"]: c["status"] for c in conditions}.get("Established") == "True" and plane.ask("GET", f"{GROUP}/{name}")[0] == 200
        assert eventually(established), plural
    return plane


def create(plane, document, user="admin", dry=False):
    path = PROFILES if document["kind"] == "TrainingProfile" else JOBS
    return plane.ask("POST", path + ("?dryRun=All" if dry else ""), document, user=user)


def fields_of(status):
    """Without the places in lists, which older servers leave out; of a oneOf these name the field in the message alone."""
    causes = status.get("details", {}).get("causes", [])
    named = [cause.get("field", "") for cause in causes] + re.findall(r'"([\w.]+)" must validate one and only one schema', str(causes))
    return [re.sub(r"\[\d+\]", "", field) for field in named]


@pytest.mark.parametrize("kind, plural", [("TrainingJob", "trainingjobs"), ("TrainingProfile", "trainingprofiles")])
def test_resources_are_structural(installed, kind, plural):
    code, kept = installed.ask("GET", f"{DEFINITIONS}/{plural}.longhaul.dev")
    assert code == 200
    conditions = {condition["type"]: condition["status"] for condition in kept["status"]["conditions"]}
    assert conditions["NamesAccepted"] == "True" and conditions.get("NonStructuralSchema", "False") == "False"
    [version] = kept["spec"]["versions"]
    def paths(schema, key):
        return sorted(path for path, part in children(schema) if key is None or key in part)

    ours, theirs = schema_of(kind), version["schema"]["openAPIV3Schema"]
    minor = int("".join(filter(str.isdigit, installed.ask("GET", "/version")[1]["minor"])))
    rules = "x-kubernetes-validations"
    assert paths(ours, rules)
    assert paths(theirs, rules) == (paths(ours, rules) if minor >= 25 else [])  # older ones drop the rules, and say nothing
    assert paths(theirs, None) == paths(ours, None)


@pytest.mark.parametrize("path", ["profile.yaml", "first-job.yaml", "job.yaml", "two-sites.yaml", "inline.yaml"])
def test_examples_are_created_with_defaults(installed, path):
    code, kept = create(installed, example(path))
    assert code == 201, kept
    if kept["kind"] == "TrainingJob":
        assert kept["spec"]["allocation"]["capacity"] == "Declared"
        assert kept["spec"]["server"]["port"] == 7700
        assert kept["spec"]["runPolicy"]["suspend"] is False
    if path == "inline.yaml":
        assert (kept["spec"]["node"]["minGPUs"], kept["spec"]["node"]["maxRetries"]) == (3, 3)


@pytest.mark.parametrize("name", BAD)
def test_bad_examples_are_refused_by_the_field(installed, name):
    path, where, value, field = BAD[name]
    document = changed(path, where, value)
    if where != ("metadata", "name"):
        document["metadata"]["name"] = "bad"  # no name that is taken
    code, status = create(installed, document, dry=True)
    assert code == 422, status
    assert re.sub(r"\[\d+\]", "", field) in fields_of(status), status


def test_s5_a_name_that_is_taken_is_a_conflict(installed):
    code, status = create(installed, example("job.yaml"))
    assert (code, status["reason"]) == (409, "AlreadyExists")


def test_a_profile_may_reach_the_host(installed):
    document = changed("profile.yaml", ("spec", "nodeTemplate", "spec"), {"hostNetwork": True, "serviceAccountName": "trainer"})
    document["metadata"]["name"] = "host"
    code, kept = create(installed, document)
    assert code == 201 and kept["spec"]["nodeTemplate"]["spec"] == {"hostNetwork": True, "serviceAccountName": "trainer"}


def may(plane, user, verb, name, resource="trainingprofiles", namespace="training"):
    """The operator's own question about a requester."""
    asked = {"group": "longhaul.dev", "resource": resource, "namespace": namespace, "verb": verb, "name": name}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
              "spec": {"user": user, "groups": ["people"], "resourceAttributes": asked}}
    code, answer = plane.ask("POST", PERMISSIONS, review, user="operator")
    assert code == 201, answer
    return answer["status"]["allowed"]


def test_s6_the_verb_use_is_asked_by_name(installed):
    assert may(installed, "alice", "use", "a100")
    assert not may(installed, "alice", "use", "host")
    assert not may(installed, "alice", "use", "")  # an inline configuration
    assert not may(installed, "alice", "use", "a100", namespace="default")
    assert not may(installed, "bob", "use", "a100")


def test_s6_the_verb_use_comes_with_the_role_and_goes_with_it(installed):
    binding = load("examples/permission.yaml")[-1]
    binding["metadata"]["name"] = "bob-uses-a100"
    binding["subjects"][0]["name"] = "bob"
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/training/rolebindings"
    assert installed.ask("POST", path, binding)[0] == 201
    assert eventually(lambda: may(installed, "bob", "use", "a100"))
    assert installed.ask("DELETE", path + "/bob-uses-a100")[0] == 200
    assert eventually(lambda: not may(installed, "bob", "use", "a100"))


def test_people_with_the_role_have_jobs_and_others_have_not(installed):
    document = example("job.yaml")
    document["metadata"]["name"] = "alices"
    assert create(installed, document, user="bob")[0] == 403
    assert create(installed, document, user="alice")[0] == 201
    assert installed.ask("GET", JOBS, user="alice")[0] == 200
    assert create(installed, example("profile.yaml"), user="alice")[0] == 403
    status = {"status": {"phase": "Succeeded"}}
    assert installed.ask("PATCH", JOBS + "/alices/status", status, user="alice", content="application/merge-patch+json")[0] == 403


def test_the_operator_writes_the_status_and_people_see_it(installed):
    # No text is empty: Kubernetes 1.20 makes null of "" in a server-side apply, and refuses that.
    status = {"apiVersion": "longhaul.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "alices"}, "status": {
        "phase": "Running", "attempt": 1, "readyNodes": "2/2", "progress": {"round": 42},
        "nodes": [{"name": "alices-node-0", "gpus": 10, "phase": "Ready", "retries": 0, "disruptions": 0, "retryAt": "2026-01-01T00:00:00Z"}],
        "conditions": [{"type": "Started", "status": "True", "reason": "AllReady", "message": "2 of 2",
                        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}
    code, kept = installed.ask("PATCH", JOBS + "/alices/status?fieldManager=longhaul&force=true", status, user="operator",
                               content="application/apply-patch+yaml")
    assert code == 200, kept["message"]
    assert kept["status"] == status["status"]  # nothing is pruned
    table = installed.ask("GET", JOBS + "/alices", user="alice", accept="application/json;as=Table;v=v1;g=meta.k8s.io")[1]
    row = dict(zip([column["name"] for column in table["columnDefinitions"]], table["rows"][0]["cells"]))
    assert [row[name] for name in ("Name", "Phase", "GPUs", "Ready", "Round")] == ["alices", "Running", 15, "2/2", 42]
    code, refusal = installed.ask("PATCH", JOBS + "/alices/status", {"status": {"phase": "Done"}}, user="operator",
                                  content="application/merge-patch+json")
    assert code == 422 and "status.phase" in fields_of(refusal)


@pytest.mark.parametrize("verb, path, allowed", [
    ("GET", "/api/v1/pods", True), ("GET", "/api/v1/nodes", True), ("GET", GROUP + "/trainingjobs", True),
    ("GET", "/apis/apps/v1/statefulsets", True), ("GET", "/api/v1/secrets", False), ("GET", "/api/v1/namespaces/training/secrets/x", False),
    ("GET", "/api/v1/namespaces/kube-system/secrets", False), ("DELETE", "/api/v1/nodes/x", False),
    ("DELETE", PROFILES + "/a100", False), ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles", False),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/longhaul-system/leases/other", False)])
def test_the_operator_has_no_right_that_it_does_not_need(installed, verb, path, allowed):
    assert installed.ask(verb, path, user="operator")[0] == (200 if allowed else 403)


def test_what_the_operator_makes_may_hang_on_a_job(installed):
    """Owner references with blockOwnerDeletion, where the cluster checks them."""
    job = installed.ask("GET", JOBS + "/alices")[1]
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": job["metadata"]["name"], "uid": job["metadata"]["uid"],
             "controller": True, "blockOwnerDeletion": True}
    plan = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "alices-plan", "ownerReferences": [owner]}, "immutable": True, "data": {}}
    assert installed.ask("POST", "/api/v1/namespaces/training/configmaps", plan, user="operator")[0] == 201
    key = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "alices-key", "ownerReferences": [owner]}, "stringData": {"job.key": "x"}}
    assert installed.ask("POST", "/api/v1/namespaces/training/secrets", key, user="operator")[0] == 201
    assert installed.ask("DELETE", JOBS + "/alices", user="alice")[0] == 200
    for path in ("configmaps/alices-plan", "secrets/alices-key"):
        # The collector of garbage looks for new kinds every 30 s.
        assert eventually(lambda p=path: installed.ask("GET", "/api/v1/namespaces/training/" + p)[0] == 404, seconds=120), path


def test_the_lease_is_the_operators(installed):
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "longhaul-operator"}, "spec": {"holderIdentity": "a"}}
    path = "/apis/coordination.k8s.io/v1/namespaces/longhaul-system/leases"
    code, kept = installed.ask("POST", path, lease, user="operator")
    assert code == 201
    kept["spec"]["holderIdentity"] = "b"
    assert installed.ask("PUT", path + "/longhaul-operator", kept, user="operator")[0] == 200
    assert installed.ask("PUT", path + "/longhaul-operator", kept, user="operator")[0] == 409  # the version is an old one
    assert installed.ask("POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", lease, user="operator")[0] == 403


def test_the_operators_pods_are_made(installed):
    def pods():
        found = installed.ask("GET", "/api/v1/namespaces/longhaul-system/pods")[1]["items"]
        return found if len(found) == 2 else None
    found = eventually(pods)
    assert found, installed.tail("kube-controller-manager")
    assert all(pod["spec"]["securityContext"]["runAsNonRoot"] for pod in found)


def test_without_an_answer_of_the_webhooks_no_job_is_created(installed):
    code, words = installed.kubectl("apply", "-k", str(FOLDER / "admission-webhook"))
    assert code == 0, words
    document = example("job.yaml")
    document["metadata"]["name"] = "late"

    def closed():
        code, status = create(installed, document, dry=True)
        return code == 500 and "trainingjobs.longhaul.dev" in status["message"]
    try:
        assert eventually(closed)
    finally:
        code, words = installed.kubectl("delete", "-k", str(FOLDER / "admission-webhook"))
        assert code == 0, words


def test_certificates_are_given_to_the_cluster(installed, tmp_path):
    """certificate.sh, with the kubectl of the plane: the CA that it gives to the webhooks has signed what the operator gets."""
    assert installed.kubectl("apply", "-k", str(FOLDER / "admission-webhook"))[0] == 0
    scale = ("scale", "deployment/longhaul-operator", "-n", "longhaul-system")
    assert installed.kubectl(*scale, "--replicas=0")[0] == 0  # no pod becomes ready here
    try:
        done = subprocess.run([str(FOLDER / "admission-webhook/certificate.sh"), f"--kubeconfig={installed.kubeconfig('admin')}"],
                              env={**os.environ, "KUBECTL": str(installed.bin / "kubectl")}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        template = installed.ask("GET", "/apis/apps/v1/namespaces/longhaul-system/deployments/longhaul-operator")[1]["spec"]["template"]
        assert "kubectl.kubernetes.io/restartedAt" in template["metadata"]["annotations"]
        secret = installed.ask("GET", "/api/v1/namespaces/longhaul-system/secrets/longhaul-operator-webhook")[1]
        (tmp_path / "tls.crt").write_bytes(base64.b64decode(secret["data"]["tls.crt"]))
        known = base64.b64decode(secret["data"]["path"]).decode()
        assert re.fullmatch("[0-9a-f]{64}", known)
        for kind, hook in (("mutating", "mutate"), ("validating", "validate")):
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/trainingjobs.longhaul.dev"
            client = installed.ask("GET", path)[1]["webhooks"][0]["clientConfig"]
            assert client["service"]["path"] == f"/{hook}/{known}"
            (tmp_path / "ca.crt").write_bytes(base64.b64decode(client["caBundle"]))
            verified = subprocess.run(["openssl", "verify", "-CAfile", str(tmp_path / "ca.crt"), "-verify_hostname",
                                       "longhaul-operator.longhaul-system.svc", str(tmp_path / "tls.crt")], capture_output=True, text=True)
            assert verified.returncode == 0, verified.stderr
    finally:
        installed.kubectl(*scale, "--replicas=2")
        installed.kubectl("delete", "-k", str(FOLDER / "admission-webhook"))


def test_two_planes_run_beside_each_other(installed):
    with ControlPlane(api_only=True) as other:
        assert other.server != installed.server
        other.ask("POST", DEFINITIONS, crd("TrainingProfile"))
        assert other.ask("GET", "/api/v1/namespaces/training")[0] == 404 and installed.ask("GET", "/api/v1/namespaces/training")[0] == 200
        assert eventually(lambda: other.ask("GET", GROUP + "/trainingprofiles")[0] == 200)
        assert other.ask("GET", GROUP + "/trainingjobs")[0] == 404


def test_objects_outlive_an_api_server(installed):
    before = installed.ask("GET", JOBS)[1]["items"]
    installed.stop_api_server()
    installed.start_api_server()
    assert eventually(lambda: installed.ask("GET", JOBS)[0] == 200)
    assert [job["metadata"]["uid"] for job in installed.ask("GET", JOBS)[1]["items"]] == [job["metadata"]["uid"] for job in before]


def test_nothing_is_left(tmp_path):
    with ControlPlane(folder=tmp_path, api_only=True) as one:
        pids = [process.pid for _, process in one.processes]
        assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
