"""deploy/kubernetes without a cluster: schemas, examples, roles and admission."""
import copy
import json
import os
import posixpath
import re
import shutil
import subprocess

import pytest
import yaml
from control_plane import cache
from resources import BAD, FOLDER, ROOT, SIZES, changed, crd, everything, example, find, load, schema_of
from schema import children, refused, structural, with_defaults
from test_containers import copied, installed

KINDS = ["TrainingJob", "TrainingProfile"]
EXAMPLES = ["profile.yaml", "first-job.yaml", "job.yaml", "two-sites.yaml", "inline.yaml"]
WHAT_MAY_CHANGE = {"runPolicy", "elastic"}


def verdict(document):
    schema = schema_of(document["kind"])
    return refused(schema, with_defaults(schema, copy.deepcopy(document)))


# --- Files.
def test_every_file_is_an_object_that_is_named():
    found = list(everything())
    assert len(found) > 15
    for path, document in found:
        assert document["apiVersion"] and document["kind"], path
        assert document["kind"] == "Kustomization" or document["metadata"]["name"], path


def test_kustomizations_name_every_file_but_those_to_copy():
    named = set()
    for path in FOLDER.rglob("kustomization.yaml"):
        [document] = load(path.relative_to(FOLDER))
        assert all((path.parent / base / "kustomization.yaml").is_file() for base in document.get("bases", [])), path
        files = document.get("resources", []) + [file for maps in document.get("configMapGenerator", []) for file in maps["files"]]
        for file in files + [patch["path"] for patch in document.get("patchesJson6902", [])]:
            assert (path.parent / file).is_file(), f"{path}: {file}"
            named.add((path.parent / file).relative_to(FOLDER).as_posix())
    there = {p.relative_to(FOLDER).as_posix() for p in FOLDER.rglob("*.*") if p.is_file() and p.suffix in (".yaml", ".json")}
    to_copy = {p for p in there if p.startswith("examples/") or p.endswith("kustomization.yaml")} | {"rbac/site.yaml", "rbac/remote-site.yaml"}
    assert named == there - to_copy


def kustomized(folder):
    """What a kustomization comes to: objects of its bases and its own, with its patches (RFC 6902, of which `add` to a list)."""
    [document] = load(f"{folder}/kustomization.yaml")
    objects = [one for base in document.get("bases", []) for one in kustomized(posixpath.normpath(f"{folder}/{base}"))]
    objects += [one for file in document.get("resources", []) for one in load(posixpath.normpath(f"{folder}/{file}"))]
    for patch in document.get("patchesJson6902", []):
        [object_] = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])]
        for operation in json.loads((FOLDER / folder / patch["path"]).read_text(encoding="utf-8")):
            assert operation["op"] == "add" and operation["path"].endswith("/-")
            place = object_
            for key in operation["path"].split("/")[1:-1]:
                place = place[int(key) if isinstance(place, list) else key]
            place.append(operation["value"])
    return objects


def named(objects):
    return sorted((one["kind"], one["metadata"]["name"]) for one in objects)


def arguments(objects):
    [deployment] = [one for one in objects if one["kind"] == "Deployment"]
    return deployment["spec"]["template"]["spec"]["containers"][0]["args"]


def test_with_the_policy_the_operator_asks_no_second_time():
    plain, policy = kustomized("."), kustomized("admission-policy")
    assert named(policy) == sorted(named(plain) + named(load("admission-policy/policy.yaml")))
    assert not [argument for argument in arguments(plain) if argument.startswith("--permission")]  # review, by the webhook's stamp
    assert arguments(policy) == arguments(plain) + ["--permission=admission"]


@pytest.mark.parametrize("folder", [".", "admission-policy", "admission-webhook", "monitoring"])
def test_kubectl_of_1_20_makes_the_same_of_it(folder, tmp_path):
    """Also with an image of one's own, as docs/howto/kubernetes.md gives it."""
    if cache() is None:
        pytest.skip("`tools/dev kube` has prepared no kubectl")
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    with (tmp_path / "kubernetes/operator/kustomization.yaml").open("a", encoding="utf-8") as file:
        file.write("images: [{name: longhaul-operator, newName: registry.example/longhaul-operator, newTag: latest}]\n")
    made = subprocess.run([cache() / "bin/kubectl", "kustomize", tmp_path / "kubernetes" / folder], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    objects = list(yaml.safe_load_all(made.stdout))
    if folder == "monitoring":  # its dashboard becomes a ConfigMap of a generated name
        return
    assert named(objects) == named(kustomized(folder))
    if folder != "admission-webhook":
        assert arguments(objects) == arguments(kustomized(folder))
        assert "image: registry.example/longhaul-operator:latest" in made.stdout


# --- The custom resources.
@pytest.mark.parametrize("kind", KINDS)
def test_schemas_are_structural_and_bounded(kind):
    assert structural(schema_of(kind)) == []


@pytest.mark.parametrize("kind, plural", [("TrainingJob", "trainingjobs"), ("TrainingProfile", "trainingprofiles")])
def test_group_version_scope_and_status(kind, plural):
    document = crd(kind)
    spec = document["spec"]
    assert document["apiVersion"] == "apiextensions.k8s.io/v1"
    assert (spec["group"], spec["scope"], spec["names"]["plural"]) == ("longhaul.dev", "Namespaced", plural)
    assert document["metadata"]["name"] == plural + ".longhaul.dev"
    [version] = spec["versions"]
    assert (version["name"], version["served"], version["storage"], version["subresources"]) == ("v1alpha1", True, True, {"status": {}})


def test_s16_columns_are_phase_gpus_ready_round_age():
    columns = crd("TrainingJob")["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [column["name"] for column in columns] == ["Phase", "GPUs", "Ready", "Round", "Age"]
    described = {"." + path for path, _ in children(schema_of("TrainingJob"))} | {".metadata.creationTimestamp"}
    assert {column["jsonPath"] for column in columns} <= described


def at(schema, path):
    return {where: part for where, part in children(schema)}[path]


def test_s3_a_configuration_has_maximum_retries_and_clean_policy():
    for schema, prefix in ((schema_of("TrainingProfile"), "spec"), (schema_of("TrainingJob"), "spec.node")):
        spec = at(schema, prefix)
        assert spec["required"] == ["maxGPUs"]
        assert at(schema, prefix + ".minGPUs")["default"] == 3 and at(schema, prefix + ".minGPUs")["minimum"] == 3  # S8
        assert at(schema, prefix + ".maxRetries")["default"] == 3
        assert at(schema, prefix + ".cleanPolicy")["enum"] == ["All", "Running", "None"]


def test_s2_a_job_inlines_what_a_profile_has():
    inline = copy.deepcopy(at(schema_of("TrainingJob"), "spec.node"))
    profile = copy.deepcopy(at(schema_of("TrainingProfile"), "spec"))
    assert inline["x-kubernetes-validations"] == profile["x-kubernetes-validations"]
    for schema in (inline, profile):  # alike but for words, and for what only a profile may
        del schema["properties"]["nodeTemplate"]["properties"], schema["x-kubernetes-validations"]
        for _, part in children(schema):
            part.pop("description", None)
    assert inline == profile


def test_s4_a_request_carries_name_gpus_data_and_script():
    schema = schema_of("TrainingJob")
    assert at(schema, "spec")["required"] == ["totalGPUs", "image", "script"]
    gpus, script = at(schema, "spec.totalGPUs"), at(schema, "spec.script.inline")
    assert (gpus["minimum"], gpus["maximum"], script["maxLength"]) == (1, 4096, 256 << 10)
    assert at(schema, "metadata.name")["maxLength"] + len("-server-") + 10 == 63


def source(path, pattern):
    """A text of the operator; nothing where it is not in the tree yet."""
    file = ROOT / path
    if not file.is_file():
        pytest.skip(f"there is no {path} yet")
    [found] = re.findall(pattern, file.read_text(encoding="utf-8"), re.S)
    return found


@pytest.mark.parametrize("name, path", [("Phase", "status.phase"), ("NodePhase", "status.nodes[].phase")])
def test_phases_are_those_of_the_operator(name, path):
    names = source("operator/resource/job_status.h", r"kNamesOf<kube::%s> = \{(.*?)\};" % name)
    assert sorted(re.findall(r'"(\w+)"', names)) == sorted(at(schema_of("TrainingJob"), path)["enum"])


@pytest.mark.parametrize("file, constant, path, bound", [
    ("training_profile.h", "kMostGpusOfNode", "spec.node.maxGPUs", "maximum"),
    ("training_profile.h", "kLeastGpusOfNode", "spec.node.minGPUs", "minimum"),
    ("training_job.h", "kMostGpus", "spec.totalGPUs", "maximum"),
    ("training_job.h", "kMostNameBytes", "metadata.name", "maxLength"),
    ("training_job.h", "kServerPort", "spec.server.port", "default")])
def test_bounds_are_those_of_the_operator(file, constant, path, bound):
    assert int(source("operator/resource/" + file, r"%s = (\d+);" % constant)) == at(schema_of("TrainingJob"), path)[bound]


# --- Rules for clusters that have CEL.
def rules(schema):
    return [(path, rule) for path, part in children(schema) for rule in part.get("x-kubernetes-validations", [])]


def test_every_field_but_the_two_that_may_change_has_a_rule():
    fields = at(schema_of("TrainingJob"), "spec")["properties"].keys()
    transitions = [rule for path, rule in rules(schema_of("TrainingJob")) if "oldSelf" in rule["rule"]]
    kept = [re.search(r"self\.(\w+) == oldSelf\.\1$", rule["rule"].rstrip(")"))[1] for rule in transitions]
    assert sorted(kept) == sorted(fields - WHAT_MAY_CHANGE)
    for name, rule in zip(kept, transitions):
        assert rule["message"].startswith(name + " cannot change")
        optional = name not in at(schema_of("TrainingJob"), "spec")["required"] and "default" not in at(schema_of("TrainingJob"), "spec." + name)
        assert (f"has(self.{name}) == has(oldSelf.{name})" in rule["rule"]) == optional


@pytest.mark.parametrize("kind", KINDS)
def test_rules_speak_of_fields_that_there_are(kind):
    schema = schema_of(kind)
    described = {path for path, _ in children(schema)}
    for path, rule in rules(schema):
        assert len(rule["message"]) > 20
        for name in re.findall(r"(?<![\w.])(?:self|oldSelf)\.([a-zA-Z.]+?)(?=\.map|\.all|\.endsWith|[^a-zA-Z.]|$)", rule["rule"]):
            assert f"{path}.{name}" in described, (path, name)


# --- Examples.
@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_are_accepted(path):
    assert verdict(example(path)) == []


def test_examples_name_each_other():
    profile = example("profile.yaml")["metadata"]
    for path in ("first-job.yaml", "job.yaml", "two-sites.yaml"):
        job = example(path)
        assert (job["spec"]["profileRef"]["name"], job["metadata"]["namespace"]) == (profile["name"], profile["namespace"])
    assert example("job.yaml")["spec"]["totalGPUs"] == 15 and example("profile.yaml")["spec"]["maxGPUs"] == 10
    sites = example("two-sites.yaml")["spec"]["sites"]
    assert [site["gpus"] for site in sites] == [10, 5]
    assert sites[1]["kubeconfigSecret"] in find("Role", "longhaul-operator-sites")["rules"][0]["resourceNames"]


def test_the_first_job_of_the_howto_needs_nothing_but_the_worker_image():
    page = (ROOT / "docs/howto/kubernetes.md").read_text(encoding="utf-8")
    assert re.findall(r"^kubectl create --as alice -f (.*)$", page, re.M) == ["deploy/kubernetes/examples/first-job.yaml"]
    spec = example("first-job.yaml")["spec"]
    assert "data" not in spec and example("profile.yaml")["spec"]["minGPUs"] <= spec["totalGPUs"]
    [program] = re.findall(r"^exec (\S+) ", spec["script"]["inline"], re.M)
    assert program in [posixpath.basename(source) for source, _ in copied("worker.containerfile")]
    assert "dataset-fashion-mnist" in installed("worker.containerfile")
    # Without GPUs: the lines of the page make a profile that the schema takes, of the resource that machines get.
    [capacity] = re.findall(r"-p '(.*)'$", page, re.M)
    [command] = re.findall(r"^(sed .*) \| kubectl apply -f -$", page, re.M)
    made = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    profile = yaml.safe_load(made)
    assert verdict(profile) == [] and profile["spec"]["gpuResource"] in json.loads(capacity)["status"]["capacity"]
    assert "nodeSelector" not in profile["spec"]["nodeTemplate"]["spec"]


@pytest.mark.parametrize("name", BAD)
def test_bad_examples_are_refused_by_the_field(name):
    path, where, value, field = BAD[name]
    assert field in [refusal[0] for refusal in verdict(changed(path, where, value))]


@pytest.mark.parametrize("size", SIZES)
def test_an_amount_of_storage_is_taken(size):
    assert verdict(changed("job.yaml", ("spec", "server", "storage", "size"), size)) == []


def test_a_profile_may_reach_the_host():
    profile = changed("profile.yaml", ("spec", "nodeTemplate", "spec"), {"hostNetwork": True, "serviceAccountName": "trainer"})
    assert verdict(profile) == []


# --- Roles.
def roles():
    return [document for _, document in everything() if document["kind"] in ("Role", "ClusterRole")]


def test_no_role_has_a_wildcard_or_gives_rights():
    for role in roles():
        for rule in role["rules"]:
            words = [word for key in ("apiGroups", "resources", "verbs", "resourceNames") for word in rule.get(key, [])]
            assert not any("*" in word for word in words), role["metadata"]["name"]
            assert not set(rule["verbs"]) & {"escalate", "bind", "impersonate", "deletecollection"}, role["metadata"]["name"]
            assert not set(rule["resources"]) & {"pods/exec", "pods/attach", "serviceaccounts/token", "roles", "clusterroles",
                                                 "rolebindings", "clusterrolebindings"}, role["metadata"]["name"]


def rights(name, kind="ClusterRole"):
    role = find(kind, name)
    return {(group, resource, verb) for rule in role["rules"] for group in rule["apiGroups"] for resource in rule["resources"]
            for verb in rule["verbs"] if "resourceNames" not in rule}


def test_the_operator_reads_no_secret_and_changes_no_profile():
    mine = rights("longhaul-operator")
    assert {verb for _, resource, verb in mine if resource == "secrets"} == {"create"}
    assert {verb for _, resource, verb in mine if resource == "trainingprofiles"} == {"get", "list", "watch"}
    assert not [(resource, verb) for _, resource, verb in mine if resource in ("pods", "configmaps", "services", "statefulsets")
                and verb in ("patch", "update")]
    remote = rights("longhaul-site", "Role")
    assert {("secrets", "create"), ("pods", "create"), ("configmaps", "delete")} <= {(resource, verb) for _, resource, verb in remote}
    assert remote <= mine  # nothing that the operator does not have at home
    assert not [verb for _, resource, verb in mine if resource == "nodes" and verb not in ("get", "list", "watch")]
    assert ("authorization.k8s.io", "subjectaccessreviews", "create") in mine
    secrets = [(role["metadata"]["name"], rule) for role in roles() for rule in role["rules"]
               if "secrets" in rule["resources"] and rule["verbs"] != ["create"]]
    assert all(rule["verbs"] == ["get"] and rule["resourceNames"] for _, rule in secrets)


def test_s6_using_a_profile_is_a_right_of_its_own():
    assert ("longhaul.dev", "trainingjobs", "create") in rights("longhaul-user")
    assert {verb for _, resource, verb in rights("longhaul-user") if resource == "trainingprofiles"} == {"get", "list", "watch"}
    assert ("longhaul.dev", "trainingprofiles", "use") in rights("longhaul-profile-admin")
    [rule] = find("Role", "uses-a100")["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (["trainingprofiles"], ["a100"], ["use"])


def test_bindings_name_roles_and_accounts_that_there_are():
    accounts = {(d["metadata"]["namespace"], d["metadata"]["name"]) for _, d in everything() if d["kind"] == "ServiceAccount"}
    there = {(role["kind"], role["metadata"]["name"]) for role in roles()}
    for path, binding in everything():
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in there, path
        for subject in binding["subjects"]:
            assert subject["kind"] == "User" or (subject["namespace"], subject["name"]) in accounts, path


# --- The operator's pod.
def test_the_operator_is_not_root_and_writes_nothing():
    pod = find("Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] >= 1000
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"]["limits"]["memory"] == "50M"
    assert not any("hostPath" in volume for volume in pod.get("volumes", []))
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_only_the_operator_has_a_token():
    assert all(d["automountServiceAccountToken"] is False for _, d in everything() if d["kind"] == "ServiceAccount")
    mounts = []
    for path, document in everything():
        if document["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job", "Pod"):
            pod = document["spec"]["template"]["spec"] if "template" in document["spec"] else document["spec"]
            if pod.get("automountServiceAccountToken", True):
                mounts.append(document["metadata"]["name"])
        assert "serviceAccountToken" not in str(document), path  # no projected one either
    assert mounts == ["longhaul-operator"]


def test_ports_and_names_of_the_operator_agree():
    deployment, service = find("Deployment"), find("Service", "longhaul-operator")
    template = deployment["spec"]["template"]
    [container] = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    assert f"--metrics=0.0.0.0:{ports['metrics']}" in container["args"] and f"--webhook=0.0.0.0:{ports['webhook']}" in container["args"]
    lease = find("Role", "longhaul-operator-lease")
    assert [f"--lease-name={name}" for rule in lease["rules"] if rule["resources"] == ["leases"] for name in rule.get("resourceNames", [])] == [
        argument for argument in container["args"] if argument.startswith("--lease-name=")]
    [script] = [p.read_text() for p in FOLDER.rglob("certificate.sh")]
    [volume] = template["spec"]["volumes"]
    assert volume["secret"]["secretName"] == re.search(r"^name=(.*)$", script, re.M)[1] + "-webhook"


@pytest.mark.parametrize("there", [True, False])
def test_the_operator_begins_anew_with_its_certificate(there, tmp_path):
    """An operator that began before there was a certificate serves no webhooks."""
    kubectl, log = tmp_path / "kubectl", tmp_path / "log"
    found, known = ("echo deployment.apps/x", "printf a2VwdA==") if there else (":", ":")
    kubectl.write_text(f"#!/bin/sh\necho \"$*\" >>{log}\n"
                       f"case \"$*\" in *' get deployment '*) {found};; *' get secret '*) {known};; *'apply -f -') cat >/dev/null;; esac\n")
    kubectl.chmod(0o755)
    done = subprocess.run([FOLDER / "admission-webhook/certificate.sh", "--context=c"], env={**os.environ, "KUBECTL": str(kubectl)},
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The path that is there already, or a new one, in both configurations.
    paths = re.findall(r'/clientConfig/service/path","value":"(/[a-z]+/)(\w+)"', log.read_text())
    assert [hook for hook, _ in paths] == ["/mutate/", "/validate/"] and paths[0][1] == paths[1][1]
    assert re.fullmatch("kept" if there else "[0-9a-f]{64}", paths[0][1])
    said = log.read_text().splitlines()
    after = said[max(i for i, line in enumerate(said) if " patch " in line) + 1:]
    lines = [f"--context=c -n longhaul-system {words}" for words in (
        "get deployment longhaul-operator --ignore-not-found -o name", "rollout restart deployment/longhaul-operator",
        "rollout status deployment/longhaul-operator --timeout=180s")]
    assert after == (lines if there else lines[:1])
    assert ("restarting deployment/longhaul-operator in longhaul-system" in done.stdout) == there


# --- Admission.
@pytest.mark.parametrize("kind", ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"])
def test_webhooks_fail_closed_and_meet_the_operator(kind):
    service = find("Service", "longhaul-operator")
    [webhook] = find(kind)["webhooks"]
    assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["admissionReviewVersions"]) == ("Fail", "None", ["v1"])
    assert webhook["timeoutSeconds"] <= 5
    # The stamp is of the spec as it is at last, also where another webhook has changed it.
    assert webhook.get("reinvocationPolicy", "IfNeeded") == "IfNeeded"
    # certificate.sh adds the path: one that stood here would come back with the next apply.
    assert "path" not in webhook["clientConfig"]["service"]
    target = webhook["clientConfig"]["service"]
    assert (target["name"], target["namespace"]) == (service["metadata"]["name"], service["metadata"]["namespace"])
    assert target["port"] in [port["port"] for port in service["spec"]["ports"] if port["name"] == "webhook"]


def test_every_form_of_admission_sees_every_create_and_update():
    forms = [find(kind)["webhooks"][0]["rules"] for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")]
    forms.append(find("ValidatingAdmissionPolicy")["spec"]["matchConstraints"]["resourceRules"])
    for [rule] in forms:
        assert rule == {"apiGroups": ["longhaul.dev"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                        "resources": ["trainingjobs"], "scope": "Namespaced"}


def test_the_policy_asks_for_the_verb_use_and_denies():
    policy, binding = find("ValidatingAdmissionPolicy"), find("ValidatingAdmissionPolicyBinding")
    spec = policy["spec"]
    assert spec["failurePolicy"] == "Fail"
    assert (binding["spec"]["policyName"], binding["spec"]["validationActions"]) == (policy["metadata"]["name"], ["Deny"])
    variables = {variable["name"]: variable["expression"] for variable in spec["variables"]}
    expressions = [validation["expression"] for validation in spec["validations"]]
    used = set(re.findall(r"variables\.(\w+)", " ".join(expressions + [v.get("messageExpression", "") for v in spec["validations"]])))
    assert used == variables.keys()
    assert variables["profiles"] == "authorizer.group('longhaul.dev').resource('trainingprofiles').namespace(request.namespace)"
    # With a profile the right to that one, without one the right to all of them.
    assert expressions[0].endswith("variables.profiles.name(variables.profile).check('use').allowed()")
    assert expressions[1].endswith("variables.profiles.check('use').allowed()")
    assert all(validation["reason"] == "Forbidden" for validation in spec["validations"])
    for variable, annotation in (("requester", "longhaul.dev/requester"), ("identity", "longhaul.dev/requester-identity")):
        assert f"annotations['{annotation}']" in variables[variable] and f"annotations['{annotation}']" in variables[variable + "Before"]
        assert f"variables.{variable} == variables.{variable}Before" in expressions[-1]  # what the webhook stamped stays


# --- The checker itself: it can fail.
@pytest.mark.parametrize("path, change, words", [
    ("spec.totalGPUs", lambda part: part.pop("type"), "has no type"),
    ("spec.totalGPUs", lambda part: part.pop("maximum"), "has no maximum"),
    ("spec.image", lambda part: part.pop("maxLength"), "has no maxLength"),
    ("spec.sites", lambda part: part.pop("maxItems"), "has no maxItems"),
    ("spec.sites", lambda part: part["items"]["required"].remove("name"), "has the key name"),
    ("spec.image", lambda part: part.update({"$ref": "#/x"}), "has $ref"),
    ("spec.image", lambda part: part.update(pattern="("), "has a pattern"),
    ("spec.allocation.strategy", lambda part: part.update(default="None"), "has a default that is refused"),
    ("spec", lambda part: part["oneOf"][0].update(type="object"), "has type inside oneOf"),
    ("spec", lambda part: part["oneOf"][0].update(required=["profile"]), "speaks of profile inside oneOf"),
    ("spec", lambda part: part["required"].append("gpus"), "requires gpus"),
    ("spec.elastic", lambda part: part.update(additionalProperties={"type": "string", "maxLength": 1}), "has properties and additionalProperties"),
    ("metadata", lambda part: part["properties"].update(labels={"type": "object"}), "says more than"),
])
def test_the_checker_of_schemas_finds(path, change, words):
    schema = copy.deepcopy(schema_of("TrainingJob"))
    change(at(schema, path))
    assert any(words in problem for problem in structural(schema)), structural(schema)


def test_the_conditions_that_the_operator_sets_are_those_of_the_resource():
    """An API server refuses the whole status of a job with another one, and the job stands still."""
    sources = "".join(path.read_text() for path in (ROOT / "operator/reconcile").glob("*.cc"))
    known = schema_of("TrainingJob")["properties"]["status"]["properties"]["conditions"]["items"]["properties"]["type"]["enum"]
    said = set(re.findall(r'\bSet\(\s*"(\w+)"', sources))
    assert len(said) > 8 and said <= set(known), said - set(known)
