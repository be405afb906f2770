"""A stand-in for the kubelets of a control plane: machines with fake GPUs, whose pods are processes of this one, or nothing at all.

`Machines` registers Nodes; the real scheduler binds pods to them. A pod is either

- a *shell* (`processes=False`): it is Running and ready at once, and ends when the test says so (`outcome`, or `end`); or
- *processes*: the commands of its containers, one after the other with their postStart hooks, with volumes, Secrets and ConfigMaps as
  folders, ready by its readiness probes, restarted by its restartPolicy, ended in order within its grace.

What differs from a machine with a kubelet:

- There are no images: programs are found in LONGHAUL_PROGRAMS and PATH. Processes see the files of the host, so that paths of mounts are
  replaced by their folders in commands, environment, hooks and probes.
- A pod's address is one of 127.1.0.0/16, and the processes listen there instead of at 0.0.0.0. With `site` all of it happens in the
  network namespace of a longhaul-wan site; there a Service of type LoadBalancer has the site's address, its pod listens at the Service's
  port of all addresses, and names lead to the site's.
- Names of Services are no DNS names: each pod has an /etc/hosts of its own (a mount namespace; this takes root), in which they stand with
  the addresses that they have by now. A server whose pod has moved is found again as in a cluster, by looking its name up.
- Processes run as the user of the test, whatever securityContext says, and liveness and startup probes are not asked.
- A claim of no class gets a volume, which is a folder.

All processes end with the test, also when that is killed.
"""
import base64
import contextlib
import http.client
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request

from control_plane import command_within, dies_with_its_parent, within

GPU = "nvidia.com/gpu"
MERGE = "application/strategic-merge-patch+json"
HEARTBEAT_SECONDS = 10  # the controller takes a machine for dead after 40
TURN_SECONDS = 0.05
SERIES = itertools.count(1)
PROBE_SECONDS = 0.5


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def name_of(thing):
    return thing["metadata"]["namespace"], thing["metadata"]["name"]


def path_of(pod, more=""):
    return "/api/v1/namespaces/{}/pods/{}".format(*name_of(pod)) + more


def selects(service, pod):
    selector = service["spec"].get("selector") or {}
    labels = pod["metadata"].get("labels", {})
    return bool(selector) and name_of(service)[0] == name_of(pod)[0] and all(labels.get(key) == value for key, value in selector.items())


class Requests:
    """Of one thread: a connection that stays. Answers None where the API server does not answer."""

    def __init__(self, plane, user="admin"):
        self.plane, self.user, self.connection = plane, user, None

    def send(self, method, path, body, content):
        if self.connection is None:
            server = urllib.parse.urlparse(self.plane.server)
            self.connection = http.client.HTTPSConnection(server.hostname, server.port, timeout=30, context=self.plane.context(self.user))
        with within(self.plane.namespace):
            self.connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": content})
        return self.connection.getresponse()

    def ask(self, method, path, body=None, content="application/json"):
        for _ in range(2):  # a connection that has been idle may be closed by now
            try:
                answer = self.send(method, path, body, content)
                return answer.status, json.loads(answer.read())
            except (OSError, http.client.HTTPException, ValueError):
                self.close()
        return None, {}

    def close(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None


class Watch:
    """Tells `on_event(type, object)` of all that becomes of a path's objects, from a list on: ADDED, MODIFIED, DELETED. After a pause of
    the API server it lists again, and says what has gone meanwhile. In a thread of its own."""

    def __init__(self, plane, path, on_event):
        self.plane, self.path, self.on_event = plane, path, on_event
        self.stopped, self.known, self.requests = threading.Event(), {}, Requests(plane)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def stop(self):
        self.stopped.set()
        self.thread.join(5)

    def tell(self, kind, thing):
        uid = thing["metadata"]["uid"]
        if kind == "DELETED":
            self.known.pop(uid, None)
        else:
            self.known[uid] = thing
        self.on_event(kind, thing)

    def run(self):
        while not self.stopped.is_set():
            try:
                self.follow()
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                pass
            self.requests.close()
            self.stopped.wait(0.2)

    def follow(self):
        code, found = self.requests.ask("GET", self.path)
        if code != 200:
            return
        there = {thing["metadata"]["uid"]: thing for thing in found["items"]}
        for uid in [uid for uid in self.known if uid not in there]:
            self.tell("DELETED", self.known[uid])
        for uid, thing in there.items():
            if uid not in self.known:
                self.tell("ADDED", thing)
            elif self.known[uid]["metadata"]["resourceVersion"] != thing["metadata"]["resourceVersion"]:
                self.tell("MODIFIED", thing)
        # Short ones: a thread that waits for a line does not see that it is to stop.
        version = found["metadata"]["resourceVersion"]
        while not self.stopped.is_set():
            path = f"{self.path}?watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=3"
            answer = self.requests.send("GET", path, None, "")
            if answer.status != 200:
                return
            for line in answer:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self.tell(event["type"], event["object"])


class Machines:
    """gpus: {name of a machine: its GPUs}. outcome(pod): (seconds, exit code) after which a shell ends by itself, or None."""

    def __init__(self, plane, gpus, processes=False, site=None, labels=None, outcome=lambda pod: None):
        # Their names are new ones: what is left of a test before has no room here.
        self.gpus = {f"{name}-{next(SERIES)}": count for name, count in gpus.items()}
        self.plane, self.processes, self.labels, self.outcome = plane, processes, labels or {}, outcome
        # Of a site of longhaul-wan: (its address, its network namespace).
        self.address, self.namespace = site or ("127.0.0.1", None)
        self.folder = plane.folder / ("pods-" + "-".join(self.gpus))
        self.lock, self.stopped = threading.RLock(), threading.Event()
        self.pods = {}  # uid: Pod or Shell
        self.services, self.addresses = [], {}
        self.changes, self.numbers = queue.Queue(), itertools.count(1)
        self.requests = None

    def __enter__(self):
        self.folder.mkdir()
        for name, count in self.gpus.items():
            amounts = {"cpu": "1000", "memory": "1000Gi", "pods": "2000", GPU: str(count)}
            labels = {"kubernetes.io/hostname": name, **self.labels}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
                    "status": {"capacity": amounts, "allocatable": amounts, "conditions": [self.heartbeat()],
                               "addresses": [{"type": "InternalIP", "address": self.address}]}}
            code, answer = self.plane.ask("POST", "/api/v1/nodes", node)
            assert code == 201, answer
        self.watch = Watch(self.plane, "/api/v1/pods", lambda kind, pod: self.changes.put((kind, pod)))
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.watch.stop()
        self.thread.join(30)
        requests = Requests(self.plane)
        for pod in list(self.pods.values()):
            pod.abandon()
            finish(requests, pod.thing)
        for name in self.gpus:
            with contextlib.suppress(OSError):
                self.plane.ask("DELETE", f"/api/v1/nodes/{name}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def heartbeat(self):
        return {"type": "Ready", "status": "True", "reason": "Here", "message": "", "lastHeartbeatTime": now(), "lastTransitionTime": now()}

    # --- One thread: changes of pods, shells, heartbeats, volumes, balancers, names.
    def run(self):
        self.requests = Requests(self.plane)
        next_heartbeat = next_look = 0
        while not self.stopped.is_set():
            with contextlib.suppress(queue.Empty):
                self.on_pod(*self.changes.get(timeout=TURN_SECONDS))
                while True:
                    self.on_pod(*self.changes.get_nowait())
            with self.lock:
                shells = [pod for pod in self.pods.values() if isinstance(pod, Shell)]
            for shell in shells:
                shell.turn(self.requests)
            if time.monotonic() >= next_heartbeat:
                next_heartbeat = time.monotonic() + HEARTBEAT_SECONDS
                for name in self.gpus:
                    self.requests.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [self.heartbeat()]}}, MERGE)
            if self.processes and time.monotonic() >= next_look:
                next_look = time.monotonic() + 0.3
                self.look()

    def on_pod(self, kind, thing):
        uid = thing["metadata"]["uid"]
        with self.lock:
            pod = self.pods.get(uid)
            if pod is not None:
                pod.thing = thing
                if kind == "DELETED":
                    pod.abandon()
                    del self.pods[uid]
            elif kind != "DELETED" and thing["spec"].get("nodeName") in self.gpus and thing["status"]["phase"] == "Pending":
                self.pods[uid] = (Pod if self.processes else Shell)(self, thing)

    def look(self):
        for claim in self.requests.ask("GET", "/api/v1/persistentvolumeclaims")[1].get("items", []):
            if claim["status"].get("phase") == "Pending" and not claim["spec"].get("volumeName"):
                self.make_volume(claim)
        code, found = self.requests.ask("GET", "/api/v1/services")
        if code != 200:
            return
        with self.lock:
            self.services = found["items"]
            for service in self.services:
                balanced = service["spec"].get("type") == "LoadBalancer" and not service["status"].get("loadBalancer")
                if balanced and any(selects(service, pod.thing) for pod in self.pods.values()):
                    self.requests.ask("PATCH", "/api/v1/namespaces/{}/services/{}/status".format(*name_of(service)),
                                      {"status": {"loadBalancer": {"ingress": [{"ip": self.address}]}}}, MERGE)
            hosts = self.hosts()
            for pod in self.pods.values():
                pod.write_hosts(hosts)

    def make_volume(self, claim):
        name = "volume-" + claim["metadata"]["uid"]
        reference = {"namespace": name_of(claim)[0], "name": name_of(claim)[1], "uid": claim["metadata"]["uid"]}
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                  "spec": {"capacity": claim["spec"]["resources"]["requests"], "accessModes": claim["spec"]["accessModes"],
                           "claimRef": reference, "persistentVolumeReclaimPolicy": "Retain",
                           "hostPath": {"path": str(self.claim_folder(*name_of(claim)))}}}
        self.requests.ask("POST", "/api/v1/persistentvolumes", volume)

    def claim_folder(self, namespace, name):
        folder = self.folder / "claims" / namespace / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def hosts(self):
        lines = ["127.0.0.1 localhost"]
        alive = [pod for pod in self.pods.values() if "deletionTimestamp" not in pod.thing["metadata"]]
        balanced = [service for service in self.services if service["spec"].get("type") == "LoadBalancer"]
        for service in self.services:
            namespace, name = name_of(service)
            for pod in [pod for pod in alive if selects(service, pod.thing)]:
                address = self.address if any(selects(one, pod.thing) for one in balanced) else pod.address
                lines.append(f"{address} {name}.{namespace}.svc {name}.{namespace}.svc.cluster.local")
        return "\n".join(lines) + "\n"

    # --- For tests.
    def find(self, namespace, name):
        with self.lock:
            for pod in self.pods.values():
                if name_of(pod.thing) == (namespace, name):
                    return pod
        return None

    def end(self, namespace, name, code):
        """A shell ends."""
        self.find(namespace, name).ends = (time.monotonic(), code)

    def log(self, namespace, name, container):
        """Of all pods of that name, the oldest first."""
        files = sorted(self.folder.glob(f"*-{namespace}-{name}/{container}.log"), key=lambda file: int(file.parent.name.split("-")[0]))
        return "".join(file.read_text(errors="replace") for file in files)


class Shell:
    """A pod without processes."""

    def __init__(self, machines, thing):
        self.machines, self.thing, self.address = machines, thing, f"127.1.0.{next(machines.numbers) % 250 + 1}"
        self.said, self.ends = None, None

    def abandon(self):
        pass

    def write_hosts(self, hosts):
        pass

    def turn(self, requests):
        if "deletionTimestamp" in self.thing["metadata"]:
            if self.said != "gone":
                self.said = "gone" if finish(requests, self.thing) else None
        elif self.said is None:
            after = self.machines.outcome(self.thing)
            if say(requests, self.thing, self.machines.address, self.address, "Running", [("running", True, 0, None)]):
                self.said = "Running"
                self.ends = self.ends or (after and (time.monotonic() + after[0], after[1]))
        elif self.said == "Running" and self.ends and time.monotonic() >= self.ends[0]:
            code = self.ends[1]
            phase = "Failed" if code else "Succeeded"
            if say(requests, self.thing, self.machines.address, self.address, phase, [("terminated", False, 0, code)]):
                self.said = phase


def say(requests, thing, host, address, phase, containers):
    """Writes a pod's status. containers: (running or terminated, ready, restarts, exit code) of each, or one for all."""
    names = [container["name"] for container in thing["spec"]["containers"]]
    containers = containers * len(names) if len(containers) == 1 else containers
    ready = phase == "Running" and all(container[1] for container in containers)
    statuses = [{"name": name, "image": "none", "imageID": "", "ready": is_ready, "started": state == "running", "restartCount": restarts,
                 "state": {"running": {"startedAt": now()}} if state == "running" else
                          {"terminated": {"exitCode": code, "startedAt": now(), "finishedAt": now(),
                                          "reason": "Error" if code else "Completed"}}}
                for name, (state, is_ready, restarts, code) in zip(names, containers)]
    value = "True" if ready else "False"
    conditions = [{"type": kind, "status": status, "lastTransitionTime": now()}
                  for kind, status in (("Initialized", "True"), ("Ready", value), ("ContainersReady", value))]
    status = {"phase": phase, "hostIP": host, "podIP": address, "podIPs": [{"ip": address}], "startTime": now(), "conditions": conditions,
              "containerStatuses": statuses}
    # The uid: a newer pod may have the name by now.
    code, _ = requests.ask("PATCH", path_of(thing, "/status"), {"metadata": {"uid": thing["metadata"]["uid"]}, "status": status}, MERGE)
    return code in (200, 404, 409)


def finish(requests, thing):
    """What is left of a pod that has been deleted goes."""
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "preconditions": {"uid": thing["metadata"]["uid"]}}
    code, _ = requests.ask("DELETE", path_of(thing), options)
    return code in (200, 404, 409)


class Container:
    def __init__(self, spec):
        self.spec, self.process, self.restarts, self.code, self.ready, self.failures = spec, None, 0, None, False, 0

    def running(self):
        return self.process is not None and self.process.poll() is None


class Pod:
    """A pod of processes, with a thread: the kernel ends a process when the thread that has started it ends."""

    def __init__(self, machines, thing):
        self.machines, self.thing = machines, thing
        number = next(machines.numbers)
        self.address = f"127.1.{number // 250}.{number % 250 + 1}"
        self.folder = machines.folder / "{}-{}-{}".format(number, *name_of(thing))
        self.folder.mkdir()
        (self.folder / "resolv.conf").write_text("")
        self.write_hosts(machines.hosts())
        self.gone = threading.Event()
        self.containers = [Container(spec) for spec in thing["spec"]["containers"]]
        self.requests = Requests(machines.plane)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def abandon(self):
        """Deleted by force, or the end of the test."""
        self.gone.set()
        if threading.current_thread() is not self.thread:
            self.thread.join(20)

    def write_hosts(self, hosts):
        file = self.folder / "hosts"
        if not file.exists() or file.read_text() != hosts:
            with open(file, "r+" if file.exists() else "w", encoding="utf-8") as out:  # in place: it is mounted
                out.write(hosts)
                out.truncate()

    def deleted(self):
        return "deletionTimestamp" in self.thing["metadata"]

    def run(self):
        try:
            if self.prepare() and all(self.run_to_end(container) for container in self.thing["spec"].get("initContainers", [])):
                for container in self.containers:
                    self.start(container)
            self.serve()
        finally:
            for container in self.containers:
                self.kill(container)
            self.requests.close()

    # --- Volumes and commands.
    def prepare(self):
        self.volumes = {}
        for volume in self.thing["spec"].get("volumes", []):
            while (folder := self.make_folder(volume)) is None:  # its Secret or ConfigMap is not there yet
                if self.gone.wait(0.2) or self.deleted():
                    return False
            self.volumes[volume["name"]] = folder
        return True

    def make_folder(self, volume):
        namespace = name_of(self.thing)[0]
        if "persistentVolumeClaim" in volume:
            return self.machines.claim_folder(namespace, volume["persistentVolumeClaim"]["claimName"])
        folder = self.folder / volume["name"]
        folder.mkdir(exist_ok=True)
        for kind, plural, key in (("secret", "secrets", "secretName"), ("configMap", "configmaps", "name")):
            if kind not in volume:
                continue
            code, found = self.requests.ask("GET", f"/api/v1/namespaces/{namespace}/{plural}/{volume[kind][key]}")
            if code != 200:
                return None
            for name, value in found.get("data", {}).items():
                (folder / name).write_bytes(base64.b64decode(value) if kind == "secret" else value.encode())
                (folder / name).chmod(volume[kind].get("defaultMode", 0o644))
        return folder

    def here(self, text, container):
        """As it is on this host: folders for mounts, the pod's address for all addresses."""
        folders = {mount["mountPath"]: str(self.volumes[mount["name"]] / mount.get("subPath", "")) for mount in container.get("volumeMounts", [])}
        if folders:  # at once: the folders themselves are below /tmp, which may be a mount
            paths = "|".join(re.escape(path) for path in sorted(folders, key=len, reverse=True))
            text = re.sub(rf"(?:{paths})(?![\w-])", lambda found: folders[found[0]], text)
        # Behind a balancer: at all addresses.
        ports = container.get("ports", []) if self.machines.namespace else []
        public = [str(port["containerPort"]) for port in ports if port.get("protocol") == "UDP"]
        return re.sub(r"0\.0\.0\.0:(?!(?:" + "|".join(public or ["none"]) + r")\b)", self.address + ":", text)

    def environment(self, container):
        found = {"PATH": os.environ.get("LONGHAUL_PROGRAMS", "") + ":" + os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"}
        for name in ("PYTHONPATH", "LONGHAUL_LIBRARY", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH"):
            if name in os.environ:
                found[name] = os.environ[name]
        fields = {"metadata.name": name_of(self.thing)[1], "metadata.namespace": name_of(self.thing)[0], "status.podIP": self.address}
        for variable in container.get("env", []):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            found[variable["name"]] = fields[field] if field else self.here(variable.get("value", ""), container)
        return found

    def launch(self, words, container):
        names = 'mount --bind "$0/hosts" /etc/hosts && mount --bind "$0/resolv.conf" /etc/resolv.conf && exec "$@"'
        inside = ["unshare", "--mount", "--propagation", "private", "--", "/bin/sh", "-c", names, str(self.folder)]
        with open(self.folder / f"{container['name']}.log", "ab") as log:
            return subprocess.Popen([*command_within(self.machines.namespace), *inside, *[self.here(word, container) for word in words]],
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=self.environment(container),
                                    start_new_session=True, preexec_fn=dies_with_its_parent)

    def run_to_end(self, container):
        process = self.launch(container["command"] + container.get("args", []), container)
        while process.poll() is None:
            if self.gone.wait(TURN_SECONDS) or self.deleted():
                process.kill()
        return process.wait() == 0

    def run_hook(self, container, name, hook, until=None):
        """until: that of a pod that is being deleted, whose hook ends with its container."""
        # A container's first process is 1 for it.
        words = [re.sub(r"\b(kill -\w+) 1\b", rf"\1 {container.process.pid}", word) for word in hook["command"]]
        spec = {**container.spec, "name": f"{container.spec['name']}.{name}", "command": words, "args": []}
        if until is None:
            return self.run_to_end(spec)
        process = self.launch(spec["command"], spec)
        while process.poll() is None and container.running() and time.monotonic() < until and not self.gone.wait(TURN_SECONDS):
            pass
        process.kill()
        return process.wait() == 0

    def start(self, container):
        spec = container.spec
        container.process, container.code, container.ready = self.launch(spec["command"] + spec.get("args", []), spec), None, False
        hook = spec.get("lifecycle", {}).get("postStart", {}).get("exec")
        if hook and not self.run_hook(container, "postStart", hook):
            self.kill(container)

    def kill(self, container):
        if container.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(container.process.pid, signal.SIGKILL)
        container.process.wait()

    # --- Its life.
    def serve(self):
        said, next_probe = None, 0
        always = self.thing["spec"].get("restartPolicy", "Always") == "Always"
        while not self.gone.is_set():
            if self.deleted():
                return self.end_in_order()
            for container in self.containers:
                self.notice_end(container, always)
            if time.monotonic() >= next_probe:
                next_probe = time.monotonic() + PROBE_SECONDS
                for container in self.containers:
                    self.probe(container)
            status = self.status()
            if status != said and say(self.requests, self.thing, self.machines.address, self.address, *status):
                said = status
            if status[0] in ("Succeeded", "Failed") and said == status:
                while not self.gone.wait(TURN_SECONDS):
                    if self.deleted() and finish(self.requests, self.thing):
                        return None
                return None
            self.gone.wait(TURN_SECONDS)
        return None

    def notice_end(self, container, always):
        if container.running() or container.code is not None:
            return
        code = 128 if container.process is None else container.process.wait()
        container.code, container.ready = code if code >= 0 else 128 - code, False
        if always and container.process is not None:
            self.kill(container)
            container.restarts += 1
            self.start(container)

    def status(self):
        codes = [container.code for container in self.containers]
        phase = "Running" if None in codes else ("Failed" if any(codes) else "Succeeded")
        return phase, [("running" if container.code is None else "terminated", container.ready, container.restarts, container.code)
                       for container in self.containers]

    def probe(self, container):
        probe = container.spec.get("readinessProbe")
        if not container.running():
            return
        good = probe is None or (self.get(probe["httpGet"]) if "httpGet" in probe else self.run_hook(container, "probe", probe["exec"]))
        container.failures = 0 if good else container.failures + 1
        if good:
            container.ready = True
        elif container.failures >= probe.get("failureThreshold", 3):
            container.ready = False

    def get(self, http_get):
        try:
            with within(self.machines.namespace), urllib.request.urlopen(f"http://{self.address}:{http_get['port']}{http_get['path']}",
                                                                         timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False

    def end_in_order(self):
        until = time.monotonic() + self.thing["metadata"].get("deletionGracePeriodSeconds", 30)
        for container in self.containers:
            hook = container.spec.get("lifecycle", {}).get("preStop", {}).get("exec")
            if hook and container.running():
                self.run_hook(container, "preStop", hook, until)
            if container.running():
                container.process.terminate()
        while any(container.running() for container in self.containers) and time.monotonic() < until:
            if self.gone.wait(TURN_SECONDS):
                return None
        for container in self.containers:
            self.kill(container)
        while not finish(self.requests, self.thing) and not self.gone.wait(0.2):
            pass
        return None

    def kill_now(self):
        """For tests: as if its machine had run out of memory."""
        for container in self.containers:
            if container.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(container.process.pid, signal.SIGKILL)


def claim(name, size="1Gi"):
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}}

