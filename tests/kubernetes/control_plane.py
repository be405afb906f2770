#!/usr/bin/env python3
"""A real Kubernetes control plane on loopback ports, for tests: etcd, kube-apiserver, and if wanted kube-controller-manager and
kube-scheduler, from the folder that `tools/dev kube` prepares.

    control_plane.py [--folder DIR] [--api-only]

prints one line of JSON when it is ready ({"server": URL, "folder": DIR, "kubeconfig": {"admin": FILE, "operator": FILE, ...}}) and
runs until its standard input ends, or SIGTERM. Any number may run beside each other: ports, certificates and files are a plane's
own. RBAC is on. There is no kubelet, so that pods stay where the test puts them. A plane may listen inside a network namespace (a site
of longhaul-wan), at an address of that.

Users are certificates of the plane's CA: `admin` (system:masters), `operator` (the service account of deploy/kubernetes), and
`alice` and `bob`, with no rights but those that a test gives them. `site` is the account of deploy/kubernetes/rbac/remote-site.yaml.
"""
import argparse
import atexit
import base64
import contextlib
import ctypes
import json
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
USERS = {"admin": ("admin", "system:masters"),
         "operator": ("system:serviceaccount:longhaul-system:longhaul-operator", "system:serviceaccounts"),
         "site": ("system:serviceaccount:training:longhaul-site", "system:serviceaccounts"),
         "alice": ("alice", "people"), "bob": ("bob", "people"),
         "controllers": ("system:kube-controller-manager", "system:masters"), "scheduler": ("system:kube-scheduler", "")}
# It takes 6 s on a machine that is idle; one that is busy with other tests may take ten times as long.
READY_SECONDS = 120


def cache(pods=False):
    """The folder of `tools/dev kube`, None where there is no control plane in it (pods: nothing that runs pods)."""
    asked = subprocess.run([sys.executable, str(ROOT / "tools/kube"), "--where", *(["--pods"] if pods else [])], capture_output=True, text=True)
    return pathlib.Path(asked.stdout.strip()) if asked.returncode == 0 else None


class Failed(Exception):
    pass


def free_port():
    with contextlib.closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def within(namespace):
    """This thread's sockets are made in a network namespace (the path of one; None: where they always are)."""
    if namespace is None:
        yield
        return
    libc, kind = ctypes.CDLL(None, use_errno=True), 0x40000000  # CLONE_NEWNET
    with open("/proc/thread-self/ns/net", "rb") as home, open(namespace, "rb") as there:
        if libc.setns(there.fileno(), kind) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
        try:
            yield
        finally:
            libc.setns(home.fileno(), kind)


def command_within(namespace):
    return [] if namespace is None else ["nsenter", f"--net={namespace}"]


def eventually(what, seconds=60, every=0.1):
    """The first result that is true, or the last one."""
    end = time.monotonic() + seconds
    while True:
        found = what()
        if found or time.monotonic() > end:
            return found
        time.sleep(every)


def until_input_ends(made, describe):
    """What this and node.py do as programs: makes it, says in a line of JSON what it is, and waits. The exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with made() as one:
            print(json.dumps(describe(one)), flush=True)
            sys.stdin.read()
    except KeyboardInterrupt:
        pass
    except Failed as error:
        print(f"{pathlib.Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return 1
    return 0


def dies_with_its_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing is left of a test that is killed


class ControlPlane:
    """REQUIRES: `tools/dev kube` has been run. Use it with `with`."""

    def __init__(self, folder=None, api_only=False, address="127.0.0.1", namespace=None, port=None, flags=()):
        binaries = cache()
        if binaries is None:
            raise Failed("there is no control plane; `tools/dev kube` prepares one")
        self.bin = binaries / "bin"
        self.api_only, self.address, self.namespace, self.port = api_only, address, namespace, port
        self.flags = flags  # of the API server
        self.own_folder = folder is None
        self.folder = pathlib.Path(folder or tempfile.mkdtemp(prefix="longhaul-kube-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes = []
        self.contexts = {}

    def __enter__(self):
        atexit.register(self.stop)
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()
        atexit.unregister(self.stop)

    # --- Certificates: one CA, which signs the server and the users.
    def openssl(self, *words):
        done = subprocess.run(["openssl", *words], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(f"openssl {words[0]}: {done.stderr}")

    def make_certificates(self):
        curve = ["-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        self.openssl("req", "-x509", "-newkey", "ec", *curve, "-days", "2", "-subj", "/CN=test-ca", "-keyout", "ca.key", "-out", "ca.crt")
        self.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "accounts.key")
        self.certificate("server", "/CN=kube-apiserver",
                         f"subjectAltName=IP:127.0.0.1,IP:{self.address},DNS:localhost,DNS:kubernetes.default.svc\n"
                         "extendedKeyUsage=serverAuth\n")
        for user, (name, group) in USERS.items():
            subject = (f"/O={group}" if group else "") + f"/CN={name}"
            self.certificate(user, subject, "extendedKeyUsage=clientAuth\n")

    def certificate(self, name, subject, extensions):
        (self.folder / f"{name}.extensions").write_text(extensions)
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", subject, "-keyout", f"{name}.key",
                     "-out", f"{name}.csr")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                     "-extfile", f"{name}.extensions", "-out", f"{name}.crt")

    def kubeconfig(self, user):
        return self.folder / f"{user}.kubeconfig"

    def write_kubeconfigs(self):
        for user in USERS:
            config = {
                "apiVersion": "v1", "kind": "Config", "current-context": "plane",
                "clusters": [{"name": "plane", "cluster": {"server": self.server, "certificate-authority": str(self.folder / "ca.crt")}}],
                "users": [{"name": user, "user": {"client-certificate": str(self.folder / f"{user}.crt"),
                                                  "client-key": str(self.folder / f"{user}.key")}}],
                "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": user, "namespace": "default"}}]}
            self.kubeconfig(user).write_text(json.dumps(config))  # JSON is YAML

    def kubeconfig_without_files(self, user):
        """As it stands in a Secret: other machines have no file of this one."""
        config = json.loads(self.kubeconfig(user).read_text())
        for part in (config["clusters"][0]["cluster"], config["users"][0]["user"]):
            for key in ("certificate-authority", "client-certificate", "client-key"):
                if key in part:
                    part[key + "-data"] = base64.b64encode(pathlib.Path(part.pop(key)).read_bytes()).decode()
        return json.dumps(config)

    # --- Processes.
    def run(self, program, *flags):
        with open(self.folder / f"{program}.log", "ab") as log:
            process = subprocess.Popen([*command_within(self.namespace), str(self.bin / program), *flags], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, cwd=self.folder, preexec_fn=dies_with_its_parent)
        self.processes.append((program, process))
        return process

    def start(self):
        self.make_certificates()
        self.client_port, self.peer_port, self.port = free_port(), free_port(), self.port or free_port()
        self.server = f"https://{self.address}:{self.port}"
        self.write_kubeconfigs()
        self.start_etcd()
        self.start_api_server()
        if not self.api_only:
            # As many requests as they like: a test does not wait for its bystanders.
            common = ["--leader-elect=false", "--port=0", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000"]
            self.run("kube-controller-manager", f"--kubeconfig={self.kubeconfig('controllers')}", f"--root-ca-file={self.folder}/ca.crt",
                     f"--service-account-private-key-file={self.folder}/accounts.key", *common)
            self.run("kube-scheduler", f"--kubeconfig={self.kubeconfig('scheduler')}", *common)

    def start_etcd(self):
        client, peer = f"http://127.0.0.1:{self.client_port}", f"http://127.0.0.1:{self.peer_port}"
        self.run("etcd", f"--data-dir={self.folder}/etcd", f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                 f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
                 "--log-level=warn")

    def start_api_server(self):
        """Also after stop_api_server: with the same port and the same objects."""
        folder = self.folder
        self.run("kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.client_port}", f"--bind-address={self.address}",
                 f"--secure-port={self.port}", "--insecure-port=0", f"--tls-cert-file={folder}/server.crt",
                 f"--tls-private-key-file={folder}/server.key", f"--client-ca-file={folder}/ca.crt", "--authorization-mode=RBAC",
                 "--anonymous-auth=false", "--service-cluster-ip-range=10.97.0.0/24", "--endpoint-reconciler-type=none",
                 "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-signing-key-file={folder}/accounts.key",
                 f"--service-account-key-file={folder}/accounts.key", "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
                 "--allow-privileged=true", *self.flags)
        self.wait_until_ready()

    def stop_api_server(self):
        self.end([pair for pair in self.processes if pair[0] == "kube-apiserver"])

    def kill_api_server(self):
        for pair in [pair for pair in self.processes if pair[0] == "kube-apiserver"]:
            pair[1].kill()
            pair[1].wait()
            self.processes.remove(pair)

    def wait_until_ready(self):
        end = time.monotonic() + READY_SECONDS
        why = ""
        while time.monotonic() < end:
            for program, process in self.processes:
                if process.poll() is not None:
                    raise Failed(f"{program} ended with {process.returncode}:\n{self.tail(program)}")
            try:
                code, answer = self.ask("GET", "/readyz")
                if code == 200:
                    return
                why = str(answer)
            except OSError as error:
                why = str(error)
            time.sleep(0.1)
        raise Failed(f"kube-apiserver is not ready after {READY_SECONDS} s ({why}):\n{self.tail('kube-apiserver')}")

    def tail(self, program):
        return "\n".join((self.folder / f"{program}.log").read_text(errors="replace").splitlines()[-20:])

    def end(self, pairs):
        for _, process in reversed(pairs):
            if process.poll() is None:
                process.terminate()
        for pair in reversed(pairs):
            try:
                pair[1].wait(10)
            except subprocess.TimeoutExpired:
                pair[1].kill()
                pair[1].wait()
            self.processes.remove(pair)

    def stop(self):
        self.end(list(self.processes))
        if self.own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    # --- Requests.
    def context(self, user):
        if user not in self.contexts:
            context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
            context.load_cert_chain(self.folder / f"{user}.crt", self.folder / f"{user}.key")
            self.contexts[user] = context
        return self.contexts[user]

    def ask(self, method, path, body=None, user="admin", content="application/json", accept="application/json"):
        """(HTTP status, the answer as JSON, or as text where it is none)."""
        request = urllib.request.Request(self.server + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": content, "Accept": accept})
        try:
            with within(self.namespace), urllib.request.urlopen(request, timeout=60, context=self.context(user)) as answer:
                code, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            code, text = error.code, error.read().decode()
        try:
            return code, json.loads(text)
        except ValueError:
            return code, text

    def kubectl(self, *words, user="admin", text=None):
        """(exit code, output) of the kubectl that belongs to it."""
        command = [*command_within(self.namespace), str(self.bin / "kubectl"), f"--kubeconfig={self.kubeconfig(user)}",
                   f"--cache-dir={self.folder}/kubectl", *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="for its files; none: one that is removed at the end")
    parser.add_argument("--api-only", action="store_true", help="without kube-controller-manager and kube-scheduler")
    options = parser.parse_args()
    return until_input_ends(lambda: ControlPlane(options.folder, options.api_only), lambda plane: {
        "server": plane.server, "folder": str(plane.folder), "bin": str(plane.bin),
        "kubeconfig": {user: str(plane.kubeconfig(user)) for user in ("admin", "operator", "alice", "bob")}})


if __name__ == "__main__":
    sys.exit(main())
