"""Programs of ps-lite, ps/ps.h: a process for the scheduler, each server and each worker."""
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

import pytest

from conftest import PROGRAMS

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODES = str(PROGRAMS / "ps_lite_modes")


class Job:
    """All processes of one job; names are "scheduler", "server 0" ... in the order of their start."""

    def __init__(self, command, workers=2, servers=2, environment=None, roles=None):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = "127.0.0.1:%d" % port
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DMLC_", "LONGHAUL_"))},
            "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(servers), "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(port), "LONGHAUL_INSECURE": self.address, "LONGHAUL_IDLE_TIMEOUT": "2",
            **(environment or {})}
        self.command = command
        self.processes = {}
        for role, count in (("scheduler", 1), ("server", servers), ("worker", workers)):
            for i in range(count if roles is None else roles.get(role, 0)):
                self.start(role, i)

    def start(self, role, i, **environment):
        self.processes["%s %d" % (role, i)] = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**self.environment, "DMLC_ROLE": role, **environment})

    def end(self, timeout=60):
        """{name: (exit code, output)}"""
        ends = {}
        until = time.monotonic() + timeout
        try:
            for name, process in self.processes.items():
                out, _ = process.communicate(timeout=max(0.1, until - time.monotonic()))
                ends[name] = (process.returncode, out)
        finally:
            self.kill()
        return ends

    def kill(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.communicate()

    def wait_for(self, text, names):
        for name in names:
            for line in self.processes[name].stdout:
                if text in line:
                    break
            else:
                pytest.fail("%s does not say %r" % (name, text))


@pytest.fixture
def job():
    jobs = []

    def start(*arguments, **more):
        jobs.append(Job(*arguments, **more))
        return jobs[-1]

    yield start
    for each in jobs:
        each.kill()


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    file = tmp_path_factory.mktemp("key") / "job.key"
    subprocess.run([str(PROGRAMS / "longhaul"), "keygen", "--out", str(file)], check=True, capture_output=True)
    return str(file)


def all_well(ends):
    assert all(code == 0 for code, _ in ends.values()), ends
    return "".join(out for _, out in ends.values())


LOSS = {"LONGHAUL_FAULT": "drop=0.05"}


@pytest.mark.parametrize("environment", [{}, LOSS], ids=["clean", "loss"])
def test_the_example_sums_and_descends(job, environment):
    out = all_well(job([str(PROGRAMS / "example_ps_lite_program")], environment=environment).end())
    assert out.count("5000 sums are right") == 2
    assert out.count("% of the samples are right") == 2


def test_with_a_key_everything_is_the_same(job, key):
    out = all_well(job([str(PROGRAMS / "example_ps_lite_program")], servers=1, environment={"LONGHAUL_KEY": key, **LOSS}).end())
    assert out.count("sums are right") == 2


@pytest.mark.parametrize("mode", ["lens", "calls", "order", "held", "simple", "late", "misuse", "again", "leave", "nothing"])
def test_mode(job, mode):
    out = all_well(job([MODES, mode]).end())
    assert sorted(line for line in out.splitlines() if line.startswith("done")) == [
        "done scheduler 0", "done server 0", "done server 1", "done worker 0", "done worker 1"]


@pytest.mark.parametrize("mode", ["lens", "calls", "order"])
def test_mode_across_loss(job, mode):
    assert all_well(job([MODES, mode], environment=LOSS).end()).count("done") == 5


def test_messages_of_many_megabytes(job):
    assert all_well(job([MODES, "big"]).end(100)).count("done") == 5


def test_two_workers_of_one_process(job):
    started = job([MODES, "two"], roles={"scheduler": 1, "server": 2, "worker": 1})
    assert len(started.end()) == 4


def test_a_program_that_does_not_wait_is_slowed_down(job):
    out = all_well(job([MODES, "flood"], workers=1, servers=1).end(120))
    peak = int(next(line for line in out.splitlines() if line.startswith("peak")).split()[1])
    assert peak < 300, "400 MB are pushed, 128 MiB may wait"


def test_a_server_that_is_killed_ends_every_wait_by_name(job):
    started = job([MODES, "silent"])
    started.wait_for("waiting", ["worker 0", "worker 1"])
    started.processes["server 1"].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    ends = started.end(20)
    assert time.monotonic() - begin < 6, "an idle time-out of 2 s and a little"
    assert ends.pop("server 1")[0] == -signal.SIGKILL
    named = set()
    for name, (code, out) in ends.items():
        assert code == 3, (name, out)
        assert "ps: " in out and "error: ps: " in out, (name, out)
        named |= set(re.findall(r"(\w+ \d) \([^)]*\) was silent", out))
    assert len(named) == 1 and named < {"server 0", "server 1"}, ends


def test_a_worker_that_is_killed_ends_a_barrier_by_name(job):
    started = job([MODES, "barrier"], servers=1)
    ranks = {}
    for name in ("worker 0", "worker 1"):
        line = next(line for line in started.processes[name].stdout if line.startswith("waiting"))
        ranks[line.split()[1]] = name
    started.processes[ranks["1"]].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    ends = started.end(20)
    assert time.monotonic() - begin < 6
    for name in ("scheduler 0", "server 0", ranks["0"]):
        assert ends[name][0] == 3 and "worker 1" in ends[name][1], ends


def test_a_process_that_ends_without_finalize_is_noticed_at_once(job):
    begin = time.monotonic()
    ends = job([MODES, "vanish"], environment={"LONGHAUL_IDLE_TIMEOUT": "30"}).end(20)
    assert time.monotonic() - begin < 10, "before the idle time-out of 30 s"
    assert sorted(code for code, _ in ends.values()) == [0, 3, 3, 3, 3], ends
    assert any("worker 0" in out and "ended without ps::Finalize" in out for _, out in ends.values()), ends


@pytest.mark.parametrize("mode, server, worker", [
    ("throws", "the disk is full", "server 0"),
    ("types", "bytes of a value at worker 0 and here", "bytes of a value"),
    ("inside", "worker 0", "only its own thread"),
    ("fewer", "keys in the servers' responses", "keys in the servers' responses")])
def test_what_goes_wrong_in_a_handler_is_said_to_all(job, mode, server, worker):
    ends = job([MODES, mode], workers=1, servers=1).end(20)
    assert [code for code, _ in ends.values()] == [3, 3, 3], ends
    assert server in ends["server 0"][1] and worker in ends["worker 0"][1], ends


def test_a_request_for_an_app_that_no_server_has_ends_by_name(job):
    ends = job([MODES, "none"], workers=1, servers=1, environment={"LONGHAUL_CONNECT_TIMEOUT": "2"}).end(20)
    assert ends["worker 0"][0] == 3 and "app 6" in ends["worker 0"][1], ends


def error_of(job, **environment):
    started = job([MODES, "nothing"], environment=environment, roles={})
    started.start(environment.get("DMLC_ROLE", "worker"), 0, **environment)
    (code, out), = started.end(20).values()
    assert code == 3, out
    return out


def test_a_wrong_environment_is_named(job, tmp_path):
    assert "DMLC_ROLE is 'boss'" in error_of(job, DMLC_ROLE="boss")
    assert "DMLC_NUM_WORKER is 'many'" in error_of(job, DMLC_NUM_WORKER="many")
    assert "DMLC_PS_ROOT_URI is not set" in error_of(job, DMLC_PS_ROOT_URI="")
    assert "DMLC_NODE_HOST: " in error_of(job, DMLC_ROLE="server", DMLC_NODE_HOST="no host")
    assert "no key: LONGHAUL_KEY" in error_of(job, LONGHAUL_INSECURE="")
    assert "LONGHAUL_INSECURE is for 10.0.0.1:1" in error_of(job, LONGHAUL_INSECURE="10.0.0.1:1")
    assert str(tmp_path / "none") in error_of(job, LONGHAUL_KEY=str(tmp_path / "none"))
    assert "fault" in error_of(job, LONGHAUL_FAULT="drop=often").lower()
    assert "no answer from scheduler" in error_of(job, LONGHAUL_CONNECT_TIMEOUT="1")


def test_a_certificate_is_refused_by_name(job, tmp_path):
    keygen = [str(PROGRAMS / "longhaul"), "keygen"]
    for options in (["--ca", "--out", "ca.key"], ["--from", "ca.key", "--role", "server", "--name", "a", "--out", "a.key"]):
        subprocess.run(keygen + options, check=True, capture_output=True, cwd=tmp_path)
    assert "takes a key that all share" in error_of(job, LONGHAUL_KEY=str(tmp_path / "a.key"))


def test_numbers_that_differ_are_named(job):
    started = job([MODES, "nothing"], roles={"scheduler": 1, "server": 1})
    started.start("worker", 0, DMLC_NUM_WORKER="3")
    out, _ = started.processes["worker 0"].communicate(timeout=20)
    assert "DMLC_NUM_WORKER and DMLC_NUM_SERVER of a worker say 3 workers and 2 servers" in out


def test_nodes_that_do_not_come_are_counted(job):
    ends = job([MODES, "nothing"], roles={"scheduler": 1, "worker": 1}, environment={"LONGHAUL_WAIT_TIMEOUT": "1"}).end(20)
    assert all(code == 3 and "only 0 of 2 servers, 1 of 2 workers" in out for code, out in ends.values()), ends


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_headers_are_cpp17_without_warnings(compiler):
    subprocess.run([compiler, "-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wold-style-cast", "-Werror", "-fsyntax-only",
                    "-I%s" % (ROOT / "include"), str(ROOT / "examples/ps_lite_program.cc"), str(ROOT / "tests/pslite/ps_lite_modes.cc")],
                   check=True, timeout=120)
