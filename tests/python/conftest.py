"""Real servers for the tests: LONGHAUL_PROGRAMS is the folder of longhaul-server."""
import ast
import inspect
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

PROGRAMS = pathlib.Path(os.environ["LONGHAUL_PROGRAMS"])


class Server:
    def __init__(self, workers=1, *options):
        self.process = subprocess.Popen(
            [str(PROGRAMS / "longhaul-server"), "--listen", "127.0.0.1:0", "--workers", str(workers), "--insecure",
             "--progress", "json", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            event = json.loads(line)
            if event.get("event") == "listening":
                self.address = event["address"]
                return
        pytest.fail("the server does not say that it listens")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)

    def end(self):
        self.process.terminate()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture
def start_server():
    servers = []

    def start(workers=1, *options):
        servers.append(Server(workers, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


@pytest.fixture
def run_python(tmp_path):
    """Runs a program of its own with the package: (exit code, output)."""

    def run(text, timeout=60, environment=None, interrupt_at=None):
        file = tmp_path / "program.py"
        file.write_text(text)
        process = subprocess.Popen([sys.executable, str(file)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, env={**os.environ, **(environment or {})})
        lines = []
        try:
            if interrupt_at:
                for line in process.stdout:
                    lines.append(line)
                    if interrupt_at in line:
                        process.send_signal(signal.SIGINT)
                        break
            rest, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return process.returncode, "".join(lines) + rest

    return run


def check_stub(module, path):
    """The stub names all that is public, with the parameters that it has; all of it has a docstring."""
    stubs = {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert set(stubs) == set(module.__all__) - {"__version__"}
    for name, node in stubs.items():
        assert inspect.getdoc(getattr(module, name)), name
        if isinstance(node, ast.FunctionDef):
            assert parameters(node.args) == [
                p.name for p in inspect.signature(getattr(module, name)).parameters.values() if p.kind != p.VAR_KEYWORD]
            continue
        for method in [m for m in node.body if isinstance(m, ast.FunctionDef)]:
            real = inspect.getattr_static(getattr(module, name), method.name)
            real = real.fget if isinstance(real, property) else real
            assert parameters(method.args) == [
                p.name for p in inspect.signature(real).parameters.values() if p.kind != p.VAR_KEYWORD], method.name
        public = {n for n in vars(getattr(module, name)) if not n.startswith("_")}
        assert public <= {getattr(m, "name", None) for m in node.body}, name


def parameters(arguments):
    return [a.arg for a in arguments.args + arguments.kwonlyargs]
