"""Reads deploy/kubernetes."""
import copy
import functools
import pathlib

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/kubernetes"


class Strict(yaml.SafeLoader):
    """A key that is there twice is a mistake: YAML would take the last one."""


def strict_mapping(loader, node, deep=False):
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    twice = {key for key in keys if keys.count(key) > 1}
    if twice:
        raise yaml.constructor.ConstructorError(None, None, f"twice: {sorted(twice)}", node.start_mark)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, strict_mapping)


@functools.lru_cache(maxsize=None)
def parsed(path):
    return [document for document in yaml.load_all((FOLDER / path).read_text(encoding="utf-8"), Strict) if document is not None]


def load(path):
    return copy.deepcopy(parsed(path))


def everything():
    """(path, object) of every YAML file."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        name = path.relative_to(FOLDER).as_posix()
        for document in load(name):
            yield name, document


def find(kind, name=None):
    [found] = [document for _, document in everything() if document["kind"] == kind and name in (None, document["metadata"]["name"])]
    return found


def crd(kind):
    [document] = [d for path, d in everything() if d["kind"] == "CustomResourceDefinition" and d["spec"]["names"]["kind"] == kind]
    return document


def schema_of(kind):
    return crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def example(path):
    return next(document for document in load("examples/" + path) if document["apiVersion"].startswith("longhaul.dev"))


# What one has to change in an example so that it is refused: the example, the path, the new value (None: the field goes),
# and the field that the refusal names.
def changed(path, at, value):
    document = copy.deepcopy(example(path))
    place = document
    *outer, last = at
    for key in outer:
        place = place.setdefault(key, {}) if isinstance(place, dict) else place[key]
    if value is None:
        place.pop(last)
    else:
        place[last] = value
    return document


def template(**pod):
    return {"maxGPUs": 4, "nodeTemplate": {"spec": pod}}


# The operator's tests have the same (tests/operator/resource_test.cc).
SIZES = ("1Pi", "0.5Ti", "10", "00.5G", "012345678901234567Gi")
NO_SIZES = ("0Gi", "0.0", "1.", ".5G", "1Ei", "0123456789012345678Gi")

BAD = {
    "no GPUs": ("job.yaml", ("spec", "totalGPUs"), 0, "spec.totalGPUs"),
    "more GPUs than the bound": ("job.yaml", ("spec", "totalGPUs"), 4097, "spec.totalGPUs"),
    "GPUs in words": ("job.yaml", ("spec", "totalGPUs"), "15", "spec.totalGPUs"),
    "without GPUs": ("job.yaml", ("spec", "totalGPUs"), None, "spec.totalGPUs"),
    "without an image": ("job.yaml", ("spec", "image"), None, "spec.image"),
    "an empty image": ("job.yaml", ("spec", "image"), "", "spec.image"),
    "without a script": ("job.yaml", ("spec", "script"), None, "spec.script"),
    "a script of 256 KiB and a byte": ("job.yaml", ("spec", "script", "inline"), "x" * 262145, "spec.script.inline"),
    "two scripts": ("job.yaml", ("spec", "script", "configMapRef"), {"name": "a", "key": "b"}, "spec.script"),
    "a profile and a configuration": ("job.yaml", ("spec", "node"), {"maxGPUs": 4}, "spec"),
    "neither profile nor configuration": ("job.yaml", ("spec", "profileRef"), None, "spec"),
    "a profile without a name": ("job.yaml", ("spec", "profileRef"), {}, "spec.profileRef.name"),
    "a name that is too long": ("job.yaml", ("metadata", "name"), "a" * 46, "metadata.name"),
    "a name that begins with a digit": ("job.yaml", ("metadata", "name"), "1a", "metadata.name"),
    "data above the claim": ("job.yaml", ("spec", "data", "subPath"), "a/../../b", "spec.data.subPath"),
    "data by an absolute path": ("job.yaml", ("spec", "data", "subPath"), "/etc", "spec.data.subPath"),
    "two kinds of data": ("job.yaml", ("spec", "data", "uri"), "https://data.example/x", "spec.data"),
    "an address that is none": ("two-sites.yaml", ("spec", "data", "uri"), "corpus", "spec.data.uri"),
    "an unknown strategy": ("job.yaml", ("spec", "allocation"), {"strategy": "Random"}, "spec.allocation.strategy"),
    "an unknown capacity": ("job.yaml", ("spec", "allocation"), {"capacity": "All"}, "spec.allocation.capacity"),
    "an unknown way to expose": ("job.yaml", ("spec", "server", "expose"), "Ingress", "spec.server.expose"),
    "port 0": ("job.yaml", ("spec", "server", "port"), 0, "spec.server.port"),
    "storage in words": ("job.yaml", ("spec", "server", "storage", "size"), "much", "spec.server.storage.size"),
    **{f"storage of {size}": ("job.yaml", ("spec", "server", "storage", "size"), size, "spec.server.storage.size") for size in NO_SIZES},
    "a server elsewhere without its key": ("job.yaml", ("spec", "server", "external"), {"host": "a.example", "port": 1},
                                           "spec.server.external.joinSecret"),
    "a site twice": ("two-sites.yaml", ("spec", "sites", 1, "name"), "amsterdam", "spec.sites"),
    "a site of two GPUs": ("two-sites.yaml", ("spec", "sites", 1, "gpus"), 2, "spec.sites[1].gpus"),
    "no node": ("job.yaml", ("spec", "elastic", "minNodes"), 0, "spec.elastic.minNodes"),
    "a deadline before the start": ("job.yaml", ("spec", "runPolicy", "startDeadlineSeconds"), 0, "spec.runPolicy.startDeadlineSeconds"),
    "a negative time to live": ("job.yaml", ("spec", "runPolicy", "ttlSecondsAfterFinished"), -1, "spec.runPolicy.ttlSecondsAfterFinished"),
    "a ring of two": ("inline.yaml", ("spec", "node", "minGPUs"), 2, "spec.node.minGPUs"),
    "more GPUs than a node's engine serves": ("inline.yaml", ("spec", "node", "maxGPUs"), 63, "spec.node.maxGPUs"),
    "an unknown clean policy": ("inline.yaml", ("spec", "node", "cleanPolicy"), "Some", "spec.node.cleanPolicy"),
    "a GPU without a domain": ("inline.yaml", ("spec", "node", "gpuResource"), "gpu", "spec.node.gpuResource"),
    "labels of pods": ("inline.yaml", ("spec", "node"), {"maxGPUs": 4, "nodeTemplate": {"metadata": {"labels": {"app": "other"}}}},
                       "spec.node.nodeTemplate.metadata.labels"),
    "annotations of pods": ("inline.yaml", ("spec", "node"), {"maxGPUs": 4, "nodeTemplate": {"metadata": {"annotations": {"a": "b"}}}},
                            "spec.node.nodeTemplate.metadata.annotations"),
    "another account": ("inline.yaml", ("spec", "node"), template(serviceAccountName="admin"), "spec.node.nodeTemplate.spec.serviceAccountName"),
    "a token": ("inline.yaml", ("spec", "node"), template(automountServiceAccountToken=True),
                "spec.node.nodeTemplate.spec.automountServiceAccountToken"),
    "the host's network": ("inline.yaml", ("spec", "node"), template(hostNetwork=True), "spec.node.nodeTemplate.spec.hostNetwork"),
    "the host's processes": ("inline.yaml", ("spec", "node"), template(hostPID=True), "spec.node.nodeTemplate.spec.hostPID"),
    "the host's memory": ("inline.yaml", ("spec", "node"), template(hostIPC=True), "spec.node.nodeTemplate.spec.hostIPC"),
    "the host's files": ("inline.yaml", ("spec", "node"), template(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
                         "spec.node.nodeTemplate.spec.volumes[0].hostPath"),
    "a privileged container": ("inline.yaml", ("spec", "node"), template(containers=[{"name": "trainer", "securityContext": {"privileged": True}}]),
                               "spec.node.nodeTemplate.spec.containers[0].securityContext.privileged"),
    "root": ("inline.yaml", ("spec", "node"), template(containers=[{"name": "trainer", "securityContext": {"runAsUser": 0}}]),
             "spec.node.nodeTemplate.spec.containers[0].securityContext.runAsUser"),
    "a capability": ("inline.yaml", ("spec", "node"),
                     template(containers=[{"name": "trainer", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]),
                     "spec.node.nodeTemplate.spec.containers[0].securityContext.capabilities.add"),
    "a port of the host": ("inline.yaml", ("spec", "node"), template(containers=[{"name": "trainer", "ports": [{"hostPort": 22}]}]),
                           "spec.node.nodeTemplate.spec.containers[0].ports[0].hostPort"),
    "a container that runs first": ("inline.yaml", ("spec", "node"), template(initContainers=[{"name": "first"}]),
                                    "spec.node.nodeTemplate.spec.initContainers"),
    "a profile without a maximum": ("profile.yaml", ("spec", "maxGPUs"), None, "spec.maxGPUs"),
    "a profile of rings of two": ("profile.yaml", ("spec", "minGPUs"), 2, "spec.minGPUs"),
    "a profile with negative retries": ("profile.yaml", ("spec", "maxRetries"), -1, "spec.maxRetries"),
    "a profile with an unknown clean policy": ("profile.yaml", ("spec", "cleanPolicy"), "all", "spec.cleanPolicy"),
}
