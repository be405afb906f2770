#!/usr/bin/env python3
"""A real Kubernetes node beside a real control plane, for tests: kubelet, containerd, runc and CNI from the folder that
`tools/dev kube --pods` prepares. Takes root, and control groups of version 1.

    with Node() as node:
        node.add_image("registry.example/x:1", programs, ...)
        node.plane.kubectl("get", "pods")

The node is a process with mount, network, pid and cgroup namespaces of its own; the control plane listens inside of its network. So
all that a kubelet and its pods leave (mounts, links, processes) ends with that process, and that ends with the test, also when the
test is killed. What is in no namespace, a folder and its control groups, is removed by a process that waits for the test's end.

What differs from a node of a cluster: there is no kube-proxy (headless Services need none; the API server calls webhooks at endpoints,
--enable-aggregator-routing), names are answered by this module from Endpoints in place of CoreDNS, volumes of claims are made by the
test, there is one node, and images come from this machine's files.
"""
import atexit
import contextlib
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

from control_plane import ControlPlane, Failed, cache, command_within, dies_with_its_parent, until_input_ends, within

NAME = "machine"
GPU = "nvidia.com/gpu"
# The API server has the address of the Service `kubernetes`, where pods look for it.
API_ADDRESS, DNS_ADDRESS, NODE_ADDRESS, PODS = "10.97.0.1", "10.97.0.10", "10.98.0.1", "10.99.0.0/24"
NAMESPACES = ["--mount", "--net", "--pid", "--cgroup", "--fork", "--kill-child", "--mount-proc"]
CGROUPS = pathlib.Path("/sys/fs/cgroup")
READY_SECONDS = 60
# The kubelet sets these of the whole machine; it finds what it wants in files that hide them.
TUNABLES = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1,
            "kernel/keys/root_maxkeys": 1000000, "kernel/keys/root_maxbytes": 25000000}

# Process 1 of the node: makes its mounts and links, and reaps until its standard input ends.
INIT = r"""
set -e
folder=$1; shift
mount -t sysfs -o nosuid,nodev,noexec none /sys
mount -t tmpfs none /sys/fs/cgroup
for controller; do
  mkdir -p /sys/fs/cgroup/$controller
  case $controller in systemd) options=none,name=systemd;; *) options=$controller;; esac
  mount -t cgroup -o $options none /sys/fs/cgroup/$controller
done
mount -t tmpfs none /run
mount -t tmpfs none /var/log
mkdir $folder/lib $folder/work
if mount -t overlay -o lowerdir=/var/lib,upperdir=$folder/lib,workdir=$folder/work none /var/lib; then echo overlayfs
else mount -t tmpfs none /var/lib; echo native; fi
for file in $folder/sys/*; do mount --bind $file /proc/sys/$(basename $file | tr : /); done
ip link set lo up
for address in ADDRESSES; do ip address add $address/32 dev lo; done
echo 1 >/proc/sys/net/ipv4/ip_forward
echo ready
while read -r line; do :; done
""".replace("ADDRESSES", f"{NODE_ADDRESS} {API_ADDRESS} {DNS_ADDRESS}")

# Waits for the end of its standard input, and of every process in the node's groups.
TIDY = r"""
folder=$1; shift
read -r line
i=0
while [ -n "$(find "$@" -name cgroup.procs -exec cat {} + 2>/dev/null)" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
find "$@" -depth -type d -exec rmdir {} \; 2>/dev/null
rm -rf --one-file-system "$folder"
"""


def own_groups():
    """{controller: this process's folder}, of control groups of version 1."""
    found = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if names:
            folder = CGROUPS / names.removeprefix("name=") / path.lstrip("/")
            if folder.is_dir():
                found[names.removeprefix("name=")] = folder
    return found


def missing():
    """Why there can be no node here, None where there can."""
    if cache(pods=True) is None:
        return "`tools/dev kube --pods` has not prepared one"
    if os.geteuid() != 0:
        return "it takes root"
    lacks = {"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "pids"} - own_groups().keys()
    if lacks:
        return f"control groups of version 1 are needed, and {', '.join(sorted(lacks))} not mounted under {CGROUPS}"
    lacks = [tool for tool in ("unshare", "nsenter", "ip", "mount") if not shutil.which(tool)]
    if lacks:
        return f"{', '.join(lacks)} missing"
    made = subprocess.run(["unshare", *NAMESPACES, "true"], capture_output=True, text=True)
    if made.returncode != 0 or not all(os.access(folder, os.W_OK) for folder in own_groups().values()):
        return f"namespaces or control groups cannot be made here: {made.stderr.strip() or CGROUPS}"
    return None


class Node:
    """REQUIRES: missing() is None. Use it with `with`."""

    def __init__(self, gpus=16):
        self.gpus, self.packages, self.bin = gpus, cache(pods=True) / "packages", cache(pods=True) / "bin"
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="longhaul-node-"))
        self.groups = [folder / f"longhaul-node-{os.getpid()}" for folder in own_groups().values()]
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        atexit.register(self.stack.close)
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()
        atexit.unregister(self.stack.close)

    # --- Namespaces and groups.
    def join(self):
        dies_with_its_parent()
        for group in self.groups:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    def start(self):
        tidy = subprocess.Popen(["sh", "-c", TIDY, "tidy", str(self.folder), *map(str, self.groups)], stdin=subprocess.PIPE,
                                start_new_session=True)
        self.stack.callback(tidy.wait)
        self.stack.callback(tidy.stdin.close)
        for group in self.groups:
            group.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (group / name).exists():
                    (group / name).write_text((group.parent / name).read_text())
        (self.folder / "sys").mkdir()
        for name, value in TUNABLES.items():
            (self.folder / "sys" / name.replace("/", ":")).write_text(f"{value}\n")
        names = [group.relative_to(CGROUPS).parts[0] for group in self.groups]
        self.init = subprocess.Popen(["unshare", *NAMESPACES, "bash", "-c", INIT, "node", str(self.folder), *names],
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=self.join)
        self.stack.callback(self.init.wait)
        self.stack.callback(self.init.kill)
        self.snapshotter = self.init.stdout.readline().strip()
        if self.init.stdout.readline() != "ready\n":
            raise Failed("the node's namespaces were not made: see above")
        self.pid = int(pathlib.Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text())
        self.network = f"/proc/{self.pid}/ns/net"
        self.start_names()
        self.plane = self.stack.enter_context(ControlPlane(
            folder=self.folder / "plane", address=API_ADDRESS, namespace=self.network, port=443,
            flags=["--kubelet-preferred-address-types=InternalIP", "--enable-aggregator-routing=true"]))
        self.start_containerd()
        self.add_image("localhost/pause:1", {"/bin/busybox": self.packages / "bin/busybox"}, Entrypoint=[
            "/bin/busybox", "sh", "-c", "trap 'exit 0' TERM; while :; do /bin/busybox sleep 3600 & wait $!; done"])
        self.start_kubelet()

    def inside(self, *command):
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--cgroup", *map(str, command)]

    def run(self, *command):
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, preexec_fn=self.join)
        if done.returncode != 0:
            raise Failed(f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def daemon(self, name, *command):
        env = {**os.environ, "PATH": f"{self.packages}/usr/bin:{self.packages}/usr/sbin:{os.environ['PATH']}"}
        with open(self.folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(self.inside(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                                       preexec_fn=self.join)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def tail(self, name, lines=30):
        return "\n".join((self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    def wait_for(self, what, name, process):
        end = time.monotonic() + READY_SECONDS
        while not what():
            if time.monotonic() > end or process.poll() is not None:
                raise Failed(f"{name} is not ready:\n{self.tail(name)}")
            time.sleep(0.1)

    def kubectl_command(self, *words):
        """For what goes on beside a test; else plane.kubectl()."""
        return [*command_within(self.network), str(self.bin / "kubectl"), f"--kubeconfig={self.plane.kubeconfig('admin')}", *words]

    # --- containerd.
    def start_containerd(self):
        cni = self.folder / "cni"
        cni.mkdir()
        (cni / "10-pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [
            {"type": "ptp", "mtu": 1400, "ipam": {"type": "host-local", "dataDir": str(self.folder / "ipam"),
                                                  "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}))
        (self.folder / "containerd.toml").write_text(f"""
version = 2
root = "{self.folder}/containerd"
state = "{self.folder}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs",
                    "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt"]
[grpc]
address = "{self.folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
restrict_oom_score_adj = true
disable_apparmor = true
disable_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{self.packages}/usr/lib/cni"
conf_dir = "{cni}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{self.snapshotter}"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{self.packages}/usr/sbin/runc"
""")
        daemon = self.daemon("containerd", self.packages / "usr/bin/containerd", "--config", self.folder / "containerd.toml")

        def answers():
            return subprocess.run(self.ctr("version"), capture_output=True, preexec_fn=self.join).returncode == 0
        self.wait_for(answers, "containerd", daemon)

    def ctr(self, *words):
        return self.inside(self.packages / "usr/bin/ctr", "--address", self.folder / "containerd.sock", "--namespace", "k8s.io", *words)

    # --- kubelet.
    def start_kubelet(self):
        (self.folder / "resolv.conf").write_text(f"nameserver {DNS_ADDRESS}\n")
        (self.folder / "kubelet.yaml").write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "makeIPTablesUtilChains": False,
            "protectKernelDefaults": True, "failSwapOn": False, "oomScoreAdj": 0, "maxOpenFiles": 10000,
            "clusterDNS": [DNS_ADDRESS], "clusterDomain": "cluster.local", "resolvConf": str(self.folder / "resolv.conf"),
            "volumePluginDir": str(self.folder / "plugins"), "evictionHard": {"memory.available": "1Mi"},
            "imageGCHighThresholdPercent": 100, "kubeAPIQPS": 100, "kubeAPIBurst": 200, "nodeStatusUpdateFrequency": "2s"}))
        daemon = self.daemon("kubelet", self.bin / "kubelet", f"--config={self.folder}/kubelet.yaml", f"--root-dir={self.folder}/kubelet",
                             f"--cert-dir={self.folder}/pki", f"--kubeconfig={self.plane.kubeconfig('admin')}", "--container-runtime=remote",
                             f"--container-runtime-endpoint=unix://{self.folder}/containerd.sock", f"--node-ip={NODE_ADDRESS}",
                             f"--hostname-override={NAME}", f"--node-labels=kubernetes.io/os=linux")
        path = f"/api/v1/nodes/{NAME}"

        def registered():
            return self.plane.ask("GET", path)[0] == 200

        def ready():
            conditions = {one["type"]: one["status"] for one in self.plane.ask("GET", path)[1]["status"]["conditions"]}
            return conditions.get("Ready") == "True"
        self.wait_for(registered, "kubelet", daemon)
        patch = [{"op": "add", "path": "/status/capacity/" + GPU.replace("/", "~1"), "value": str(self.gpus)}]
        code, answer = self.plane.ask("PATCH", path + "/status", patch, content="application/json-patch+json")
        if code != 200:
            raise Failed(f"no GPUs: {answer}")
        self.wait_for(ready, "kubelet", daemon)

    # --- Images.
    def add_image(self, name, files, links=None, **config):
        """An image of one layer: {path in it: file of this machine, or bytes}, with what ELF files are linked to."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            def entry(path, kind, mode=0o755, target="", data=b""):
                info = tarfile.TarInfo(path.lstrip("/"))
                info.type, info.mode, info.linkname, info.size = kind, mode, target, len(data)
                archive.addfile(info, io.BytesIO(data))
            folders = {"/tmp"}
            whole = {**libraries_of(files.values()), **files}
            for path in [*whole, *(links or {})]:
                folders.update(str(parent) for parent in pathlib.PurePosixPath(path).parents if str(parent) != "/")
            for path in sorted(folders):
                entry(path, tarfile.DIRTYPE, 0o1777 if path == "/tmp" else 0o755)
            for path, target in (links or {}).items():
                entry(path, tarfile.SYMTYPE, target=target)
            for path, file in whole.items():
                entry(path, tarfile.REGTYPE, 0o755, data=file if isinstance(file, bytes) else pathlib.Path(file).read_bytes())
        content = layer.getvalue()
        config = json.dumps({"architecture": "amd64", "os": "linux", "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], **config},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(content).hexdigest()]}}).encode()
        manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
        file = self.folder / "image.tar"
        with tarfile.open(file, "w") as archive:
            for path, data in (("layer.tar", content), ("config.json", config), ("manifest.json", manifest)):
                info = tarfile.TarInfo(path)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        done = subprocess.run(self.ctr("images", "import", "--snapshotter", self.snapshotter, file), capture_output=True, text=True,
                              preexec_fn=self.join)
        file.unlink()
        if done.returncode != 0:
            raise Failed(f"image {name}: {done.stdout}{done.stderr}")

    # --- Volumes.
    def add_volume(self, name, size="1Gi", mode="ReadWriteOnce"):
        """A PersistentVolume in a folder of this node, which is returned."""
        folder = self.folder / "volumes" / name
        folder.mkdir(parents=True)
        here = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}]}
        code, answer = self.plane.ask("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": {
            "capacity": {"storage": size}, "accessModes": [mode], "local": {"path": str(folder)}, "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [here]}}}})
        if code != 201:
            raise Failed(f"volume {name}: {answer}")
        return folder

    # --- Processes of pods.
    def processes(self):
        """{pid: name} of every process in a container."""
        [group] = [group for group in self.groups if group.relative_to(CGROUPS).parts[0] == "pids"]
        found = {}
        for file in group.rglob("cgroup.procs"):
            if file.parent == group:
                continue  # kubelet and containerd
            with contextlib.suppress(OSError):
                for pid in file.read_text().split():
                    with contextlib.suppress(OSError):
                        found[int(pid)] = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        return found

    # --- Names: A records of Endpoints, those of hosts with a subdomain, too.
    def start_names(self):
        with within(self.network):
            self.names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.names.bind((DNS_ADDRESS, 53))
        self.stack.callback(self.names.close)
        threading.Thread(target=self.answer_names, daemon=True).start()

    def answer_names(self):
        with contextlib.suppress(OSError):  # it is closed at the end
            while True:
                question, asker = self.names.recvfrom(512)
                with contextlib.suppress(OSError, ValueError, KeyError, IndexError, struct.error):
                    self.names.sendto(self.answer_to(question), asker)

    def answer_to(self, question):
        words, at = [], 12
        while question[at]:
            words.append(question[at + 1:at + 1 + question[at]].decode().lower())
            at += 1 + question[at]
        kind = struct.unpack(">H", question[at + 1:at + 3])[0]
        found = self.addresses(words)
        records = b"".join(b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 0, 4) + socket.inet_aton(one) for one in found or [] if kind == 1)
        refusal = 3 if found is None else 0  # no such name
        return (question[:2] + struct.pack(">HHHHH", 0x8580 | refusal, 1, len(records) // 16, 0, 0) + question[12:at + 5] + records)

    def addresses(self, words):
        if len(words) < 5 or words[-3:] != ["svc", "cluster", "local"]:
            return None
        *host, service, namespace = words[:-3]
        code, endpoints = self.plane.ask("GET", f"/api/v1/namespaces/{namespace}/endpoints/{service}")
        if code != 200:
            return None
        found = [one for subset in endpoints.get("subsets", []) for one in subset.get("addresses", [])]
        return [one["ip"] for one in found if not host or host == [one.get("hostname")]]


def libraries_of(files):
    """{path: file} of the shared libraries, the loader among them."""
    names = [str(file) for file in files if not isinstance(file, bytes) and pathlib.Path(file).read_bytes()[:4] == b"\x7fELF"]
    said = subprocess.run(["ldd", *names], capture_output=True, text=True).stdout
    return {path: path for path in re.findall(r"^\s+(?:\S+ => )?(/\S+) \(0x", said, re.M)}


def main():
    why = missing()
    if why:
        print(f"node: {why}", file=sys.stderr)
        return 1
    return until_input_ends(Node, lambda node: {"folder": str(node.folder), "kubectl": " ".join(node.kubectl_command())})


if __name__ == "__main__":
    sys.exit(main())
