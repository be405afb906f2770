"""longhaul-worker ... -- COMMAND: real programs as ranks, on one host and on two."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from conftest import PROGRAMS

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKER = str(PROGRAMS / "longhaul-worker")


def launch(*options, command, environment=None, **more):
    process = subprocess.Popen([WORKER, *options, "--", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}, **more)
    return process


def run(*options, command, timeout=60, environment=None):
    process = launch(*options, command=command, environment=environment)
    try:
        out, err = process.communicate("typed\n", timeout=timeout)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.fixture
def program(tmp_path):
    def write(text):
        file = tmp_path / "program.py"
        file.write_text(textwrap.dedent(text))
        return [sys.executable, str(file)]

    return write


TRAIN = """
    import os, longhaul, numpy
    with longhaul.connect() as client:
        w = client.declare("w", 10, optimizer="sgd:lr=1", high_share=1)
        out = numpy.zeros(10, numpy.float32)
        for _ in range(3):
            client.push_pull(w, numpy.full(10, client.rank, numpy.float32), out).wait(60)
        os.write(1, b"%d %d %g\\n" % (client.rank, client.world_size, out[0]))
"""


def test_four_ranks_of_one_host(start_server, program):
    server = start_server(4)
    code, out, err = run("--join", server.address, "--insecure", "--world-size", "4", "--ranks", "4", command=program(TRAIN))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["%d 4 -4.5" % rank for rank in range(4)]


def test_the_example_finds_the_truth(start_server):
    server = start_server(2)
    example = ROOT / "examples/numpy_linear.py"
    code, out, err = run("--join", server.address, "--insecure", "--world-size", "2", "--ranks", "2",
                         command=[sys.executable, str(example)])
    assert code == 0, err
    assert out.startswith("distance to the truth: ") and float(out.split()[-1]) < 0.05


def test_the_commands_of_the_tutorial_of_pytorch_are_taken(program):
    """tools/dev demo hands all to longhaul run; it builds before, so that the program of this build is asked."""
    page = (ROOT / "docs/tutorials/pytorch.md").read_text()
    demos = re.findall(r"^tools/dev demo (.*)-- python3 (examples/.*)$", page, re.MULTILINE)
    examples = re.findall(r"(examples/\w+\.py)((?: --[\w-]+ [^\s`]+)*)", page)
    assert len(demos) >= 2 and len(examples) > len(demos)
    usage = subprocess.run([str(ROOT / "tools/dev"), "help"], capture_output=True, text=True, check=True).stdout
    assert "demo [ARGUMENTS] -- COMMAND" in usage
    join = program("import longhaul\nwith longhaul.connect() as client:\n    client.declare('w', 10)\n")
    for options, command in demos:
        assert command.split()[0] in dict(examples), command
        done = subprocess.run([str(PROGRAMS / "longhaul"), "run", *options.split(), "--wan", "loopback", "--", *join],
                              capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    pytest.importorskip("torch")
    for example, options in set(examples):
        # argparse looks at the values before --help, and at names that it does not know after it.
        done = subprocess.run([sys.executable, str(ROOT / example), *options.split(), "--help"], capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert set(re.findall(r"--[\w-]+", options)) <= set(re.findall(r"--[\w-]+", done.stdout)), (example, options)


def test_what_a_rank_finds_in_its_environment():
    show = ["sh", "-c", "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT "
            "$OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $DMLC_ROLE $DMLC_WORKER_ID $DMLC_NUM_WORKER $DMLC_PS_ROOT_URI "
            "$DMLC_PS_ROOT_PORT $LONGHAUL_JOIN $LONGHAUL_RANK $LONGHAUL_WORLD_SIZE $LONGHAUL_IDLE_TIMEOUT "
            "${LONGHAUL_INSECURE:-secure} ${LONGHAUL_RATE_CAP:-uncapped}; read line || echo empty"]
    code, out, err = run("--join", "10.0.0.1:77", "--rank", "4", "--world-size", "8", "--ranks", "2", "--idle-timeout", "3",
                         "--rate-cap", "100mbit", command=show)
    assert code == 0, err
    common = "8 {local} 2 10.0.0.1 77 {rank} 8 worker {rank} 8 10.0.0.1 77 10.0.0.1:77 {rank} 8 3 secure 100mbit"
    assert sorted(out.splitlines()) == [*("%d %s" % (rank, common.format(local=rank - 4, rank=rank)) for rank in (4, 5)),
                                        "empty", "empty"]
    code, out, err = run("--join", "[fe80::1]:77", "--insecure", command=["sh", "-c",
                         "echo $MASTER_ADDR $DMLC_PS_ROOT_URI $LONGHAUL_INSECURE"])
    assert (code, out) == (0, "fe80::1 [fe80::1] [fe80::1]:77\n"), err
    code, out, err = run("--join", "a:1", "--insecure", command=["sh", "-c", "echo $MASTER_ADDR $MASTER_PORT"],
                         environment={"MASTER_ADDR": "rank0", "MASTER_PORT": "29500"})
    assert (code, out) == (0, "rank0 29500\n"), err
    show = ["sh", "-c", "echo $GROUP_RANK $ROLE_RANK $ROLE_WORLD_SIZE $ROLE_NAME $TORCHELASTIC_RUN_ID ${OMP_NUM_THREADS-unset}"]
    code, out, err = run("--join", "a:1", "--insecure", "--rank", "4", "--world-size", "8", "--ranks", "2", command=show)
    assert code == 0 and sorted(out.splitlines()) == ["2 4 8 default none 1", "2 5 8 default none 1"], err
    assert "OMP_NUM_THREADS is not set: it is 1 for each of 2 ranks" in err
    code, out, err = run("--join", "a:1", "--insecure", "--job", "mine", "--rank", "1", "--world-size", "2", command=show)
    assert (code, out) == (0, "1 1 2 default mine unset\n"), err


LOCAL = ["sh", "-c", "echo $LOCAL_RANK $LOCAL_WORLD_SIZE $OMPI_COMM_WORLD_LOCAL_RANK $OMPI_COMM_WORLD_LOCAL_SIZE $GROUP_RANK "
         "$LONGHAUL_SITE_RANK"]


@pytest.mark.parametrize("rank, size", [("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
                                        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")])
def test_one_rank_of_another_launcher_keeps_its_place_on_the_host(rank, size):
    around = {"RANK": "6", "WORLD_SIZE": "8", rank: "2", size: "4"}
    code, out, err = run("--join", "a:1", "--insecure", command=LOCAL, environment=around)
    assert (code, out) == (0, "2 4 2 4 1\n"), err
    code, out, err = run("--join", "a:1", "--insecure", command=LOCAL, environment={**around, "GROUP_RANK": "3"})
    assert (code, out) == (0, "2 4 2 4 3\n"), err
    code, out, err = run("--join", "a:1", "--insecure", "--ranks", "1", command=LOCAL, environment=around)
    assert (code, out) == (0, "0 1 0 1 6\n"), err
    code, out, err = run("--offload", "unix:/tmp/s", command=LOCAL, environment=around)
    assert (code, out) == (0, "2 4 2 4 2\n"), err
    for wrong, words in [({rank: "x"}, rank + " is 'x', which is no number"), ({size: "-1"}, size + " is '-1', which is no number"),
                         ({rank: "4"}, "LOCAL_RANK 4 is not below LOCAL_WORLD_SIZE 4")]:
        code, _, err = run("--join", "a:1", "--insecure", command=LOCAL, environment={**around, **wrong})
        assert code == 2 and words in err, err


def test_a_hostfile_numbers_hosts(tmp_path):
    (tmp_path / "hosts").write_text("a slots=3\nb slots=2\n")
    code, out, err = run("--join", "a:1", "--insecure", "--hostfile", str(tmp_path / "hosts"), "--host", "b", command=LOCAL)
    assert code == 0 and sorted(out.splitlines()) == ["0 2 0 2 1", "1 2 1 2 1"], err


def test_no_variable_says_the_rank_of_a_sites():
    """The launcher knows its own ranks alone: 0 of 2 at every site would train the same shard there."""
    names = ("RANK WORLD_SIZE OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE DMLC_WORKER_ID DMLC_NUM_WORKER ROLE_RANK ROLE_WORLD_SIZE "
             "GROUP_RANK").split()
    show = ["sh", "-c", "echo $LOCAL_RANK $LOCAL_WORLD_SIZE $LONGHAUL_SITE_RANK %s" % " ".join("${%s-none}" % name for name in names)]
    around = {name: "7" for name in names}
    code, out, err = run("--offload", "unix:/tmp/s", "--ranks", "2", command=show, environment=around)
    assert code == 0 and sorted(out.splitlines()) == ["%d 2 %d" % (rank, rank) + " none" * len(names) for rank in (0, 1)], err
    code, out, err = run("--offload", "unix:/tmp/s", command=show)
    assert (code, out) == (0, "0 1 0" + " none" * len(names) + "\n"), err
    code, out, err = run("--offload", "unix:/tmp/s", command=show, environment=around)  # as another launcher says it
    assert (code, out) == (0, "0 1 0" + " 7" * len(names) + "\n"), err


def test_words_of_the_command_are_not_the_launchers():
    code, out, err = run("--join", "a:1", "--insecure", environment={"RANK": "3", "WORLD_SIZE": "5"}, command=[
        "sh", "-c", "echo $RANK $WORLD_SIZE $*", "x", "--offload", "cpu", "--hostfile=h", "--", "--rounds"])
    assert (code, out) == (0, "3 5 --offload cpu --hostfile=h -- --rounds\n"), err


@pytest.mark.parametrize("command, expected", [("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("exit 0", 0)])
def test_the_exit_code_is_the_ranks(command, expected):
    assert run("--join", "a:1", "--insecure", command=["sh", "-c", command])[0] == expected


def test_one_that_fails_for_good_ends_the_others():
    begun = time.monotonic()
    code, out, err = run("--join", "a:1", "--insecure", "--world-size", "3", "--ranks", "3", command=[
        "sh", "-c", "[ $RANK != 1 ] || { sleep 0.3; exit 5; }; trap 'echo told; exit 0' TERM; sleep 60 & wait"])
    assert code == 5 and time.monotonic() - begun < 8
    assert out == "told\ntold\n" and "rank 1 ended by exit code 5" in err


def test_one_that_takes_no_notice_is_killed():
    begun = time.monotonic()
    code, _, _ = run("--join", "a:1", "--insecure", "--world-size", "2", "--ranks", "2", command=[
        "sh", "-c", "[ $RANK != 1 ] || exit 5; trap '' TERM; while :; do sleep 1; done"])
    assert code == 5 and 9 < time.monotonic() - begun < 30


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_go_to_the_ranks(number):
    process = launch("--join", "a:1", "--insecure", "--world-size", "2", "--ranks", "2", "--restarts", "5", command=[
        "sh", "-c", "trap 'echo got; exit 3' %s; echo ready; while :; do sleep 0.1; done" % number.name[3:]])
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "ready\n"]
    process.send_signal(number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (3, "got\ngot\n")


def test_a_signal_between_two_starts_keeps_the_exit_code():
    process = launch("--join", "a:1", "--insecure", "--restarts", "3", command=["sh", "-c", "echo runs; exit 7"])
    assert process.stdout.readline() == "runs\n"
    time.sleep(0.4)
    process.terminate()
    assert process.wait(20) == 7


def test_a_second_signal_kills():
    process = launch("--join", "a:1", "--insecure", command=["sh", "-c", "trap '' TERM; echo runs; while :; do sleep 0.1; done"])
    assert process.stdout.readline() == "runs\n"
    process.terminate()
    time.sleep(0.3)
    process.terminate()
    process.communicate(timeout=20)  # to the end of its output: no rank is left
    assert process.returncode in (137, 143)


def test_other_signals_reach_the_ranks_too():
    process = launch("--join", "a:1", "--insecure", command=["sh", "-c", "trap 'echo saved' USR1; echo runs; sleep 0.5; sleep 0.5"])
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "saved\n")


def test_what_a_failed_rank_leaves_is_gone_before_it_is_started_again(tmp_path):
    code, out, err = run("--join", "a:1", "--insecure", "--restarts", "1", environment={"LEFT": str(tmp_path / "left")}, command=[
        "sh", "-c", "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || { sleep 0.2; P=/proc/$(cat $LEFT)/stat; [ -e $P ] && ! grep -q ') Z ' $P || echo gone; exit 0; }; "
        "sh -c \"trap '' TERM; echo \\$\\$ > $LEFT; while :; do sleep 0.1; done\" & sleep 0.3; exit 1"])
    assert (code, out) == (0, "gone\n"), err


def test_a_hostfile_goes_before_the_ranks_of_the_environment(tmp_path):
    (tmp_path / "hosts").write_text("elsewhere\nlocalhost slots=2\n")
    code, out, err = run("--join", "a:1", "--insecure", "--hostfile", str(tmp_path / "hosts"), command=["sh", "-c", "echo $RANK $WORLD_SIZE"],
                         environment={"RANK": "0", "WORLD_SIZE": "9"})
    assert code == 0 and sorted(out.splitlines()) == ["1 3", "2 3"], err


def test_a_closed_pipe_ends_a_program():
    code, out, _ = run("--join", "a:1", "--insecure", command=["sh", "-c", "kill -PIPE $$; echo alive"])
    assert (code, out) == (128 + signal.SIGPIPE, "")


def test_a_grandchild_that_a_rank_leaves_behind_is_ended():
    begun = time.monotonic()
    code, out, _ = run("--join", "a:1", "--insecure", command=["sh", "-c", "sleep 45 & exit 3"])  # it has the pipe, too
    assert code == 3 and time.monotonic() - begun < 30, out


def test_a_killed_launcher_leaves_no_rank():
    process = launch("--join", "a:1", "--insecure", command=["sh", "-c", "echo $$; exec sleep 60"])
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    for _ in range(100):
        if not pathlib.Path("/proc/%d" % pid).exists() or " Z " in pathlib.Path("/proc/%d/stat" % pid).read_text():
            return
        time.sleep(0.1)
    pytest.fail("process %d lives on" % pid)


def test_a_rank_that_is_killed_is_started_again(start_server, program):
    server = start_server(2)
    code, out, err = run("--join", server.address, "--insecure", "--world-size", "2", "--ranks", "2", "--restarts", "2",
                         "--idle-timeout", "5", command=program("""
        import os, signal, longhaul, numpy
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        with longhaul.connect() as client:
            w = client.declare("w", 10, high_share=1)
            out = numpy.zeros(10, numpy.float32)
            while True:
                step = client.push_pull(w, numpy.full(10, 1, numpy.float32), out)
                step.wait(60)
                if client.rank == 1 and first and step.stats()["round"] == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step.stats()["round"] >= 9:
                    break
            os.write(1, b"%d %d %g\\n" % (client.rank, first, out[0]))
    """))
    assert code == 0, err
    assert sorted(out.splitlines()) == ["0 1 1", "1 0 1"]
    assert "rank 1 ended by signal 9; it is started again in 1 s (1 of 2)" in err


@pytest.mark.parametrize("options, words", [
    (["--ranks", "2"], "ranks 0..1 are not below --world-size 1"),
    (["--rank", "4294967295"], "--rank 4294967295 is not below"),
    (["--progress", "none"], "--progress has no meaning with a command"),
    (["--no-seccomp"], "--no-seccomp has no meaning"),
    (["--incarnation", "3"], "--incarnation (or its variable) has no meaning"),
    (["--allow-core-dump"], "--allow-core-dump (or its variable) has no meaning"),
    (["--rate-cap", "1mbit", "--rate-floor", "2mbit"], "above --rate-cap"),
    (["--hostfile", "/tmp"], "cannot read /tmp"),
    (["--rounds", "3"], "--rounds has no meaning"),
    (["--hostfile", "/nonexistent"], "cannot read /nonexistent"),
    (["--hostfile", "hosts", "--rank", "0"], "excludes"),
    (["--host", "a"], "hostfile"),
    (["--ranks", "0"], "--ranks"),
])
def test_wrong_options_are_named(options, words):
    code, _, err = run("--join", "a:1", "--insecure", *options, command=["true"])
    assert code == 2 and words in err.replace("\n", " "), err


def test_nothing_behind_the_dashes():
    done = subprocess.run([WORKER, "--join", "a:1", "--insecure", "--"], capture_output=True, text=True)
    assert done.returncode == 2 and "-- is followed by no command" in done.stderr


def test_a_command_that_is_not_there():
    code, _, err = run("--join", "a:1", "--insecure", "--restarts", "9", command=["/nonexistent"])
    assert code == 127 and "/nonexistent: No such file" in err


@pytest.mark.parametrize("text, words", [
    ("a slots=2\nb slots=0\n", "line 2: 'slots=0'"),
    ("a slots=two\n", "line 1: 'slots=two'"),
    ("a port=3\n", "line 1: 'port=3'"),
    ("a\nhere\nhere\n", "line 3: this host is here twice"),
    ("a slots=65536\nb\n", "line 2: more than 65536"),
    ("a\nb\n# here\n", "does not name this host (here)"),
    ("", "does not name this host"),
])
def test_bad_hostfiles(tmp_path, text, words):
    (tmp_path / "hosts").write_text(text)
    code, _, err = run("--join", "a:1", "--insecure", "--hostfile", str(tmp_path / "hosts"), "--host", "here", command=["true"])
    assert code == 2 and words in err, err


@pytest.fixture
def two_hosts():
    """Two network namespaces with a veth pair between them: 10.87.0.1 and 10.87.0.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("namespaces need root and iproute2")
    names = ["lhl%d%s" % (os.getpid(), side) for side in "ab"]

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", "10.87.0.%d/24" % (number + 1), "dev", name)
            ip("-n", name, "link", "set", name, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def test_four_ranks_of_a_python_and_a_c_plus_plus_program_on_two_hosts(two_hosts, tmp_path, program):
    hosts = tmp_path / "hosts"
    hosts.write_text("# two sites\n10.87.0.1 slots=2\n10.87.0.2 slots=2 max_slots=4\n")
    server = subprocess.Popen(["ip", "netns", "exec", two_hosts[0], str(PROGRAMS / "longhaul-server"), "--listen", "10.87.0.1:7700",
                               "--insecure", "--insecure-bind", "--workers", "4", "--progress", "json"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert "listening" in server.stdout.readline()
        processes = [subprocess.Popen(
            ["ip", "netns", "exec", name, WORKER, "--join", "10.87.0.1:7700", "--insecure", "--hostfile", str(hosts), "--", *command],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name, command in zip(two_hosts, (program(TRAIN), [str(PROGRAMS / "example_launched")]))]
        outputs = [process.communicate(timeout=60) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        assert sorted("".join(out for out, _ in outputs).splitlines()) == ["%d 4 -4.5" % rank for rank in range(4)]
    finally:
        server.terminate()
        server.wait(20)
        server.stdout.close()


# --- longhaul run ... -- COMMAND ---


def run_job(tmp_path, *options, command, timeout=100):
    done = subprocess.run([str(PROGRAMS / "longhaul"), "run", "--wan", "loopback", "--rate", "1gbit", "--delay", "0ms", "--logs",
                           str(tmp_path / "logs"), "--json", str(tmp_path / "run.json"), *options, "--", *command],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout)
    return done.returncode, done.stdout


@pytest.mark.parametrize("options,size", [(("--workers", "3"), 3), (("--sites", "2", "--ranks", "2", "--offload"), 4)])
def test_a_command_is_run_across_an_emulated_wan(tmp_path, program, options, size):
    code, out = run_job(tmp_path, *options, "--loss", "2%", command=program(TRAIN))
    assert code == 0, out
    value = -3 * (size - 1) / 2  # three steps of the ranks' mean
    said = sorted(line for line in out.splitlines() if line.endswith(" %g" % value))
    assert said == ["%d %d %g" % (rank, size, value) for rank in range(size)], out
    summary = json.loads((tmp_path / "run.json").read_text())
    assert summary["ok"] and summary["command"] == program(TRAIN) and summary["bytes_up"] > 0
    assert "accuracy" not in summary and "accuracy" not in out


def test_a_command_that_fails_says_so_with_its_last_words(tmp_path, program):
    code, out = run_job(tmp_path, "--workers", "2", command=program("""
        import longhaul
        with longhaul.connect() as client:
            client.declare("w", 10)
            raise RuntimeError("this went wrong")
        """))
    assert code == 1 and "RuntimeError: this went wrong" in out and "Traceback" in out, out
    assert json.loads((tmp_path / "run.json").read_text())["ok"] is False


@pytest.mark.parametrize("options,command,words", [
    (("--lr", "0.1"), ["true"], "--lr has no meaning with a command"),
    (("--rounds", "3"), ["true"], "--rounds has no meaning with a command"),
    (("--min-accuracy", "0.5"), ["true"], "--min-accuracy has no meaning with a command"),
    ((), [], "-- is followed by no command"),
])
def test_what_means_nothing_to_a_command_is_refused(tmp_path, options, command, words):
    code, out = run_job(tmp_path, *options, command=command)
    assert code == 2 and words in out


def test_ranks_that_never_join_end_the_run_and_all_that_they_say_is_shown(tmp_path):
    code, out = run_job(tmp_path, "--workers", "1", command=["printf", "one\ntwo"], timeout=40)
    assert code == 1 and "did they join it?" in out, out
    assert out.splitlines().count("one") == out.splitlines().count("two") == 1, out
