#!/usr/bin/env python3
"""Installs a build to a prefix and uses the library outside the tree as others do.

    install_test.py SOURCE BUILD CXX

Three ways (find_package, pkg-config, add_subdirectory), static and shared, with warnings of the user's own. Each
builds and runs the tutorial's program against the installed daemon, and one with its server inside; the examples of
the header comments are compiled into that one.
"""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wpedantic"]


def run(command, **more):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **more)
    if result.returncode != 0:
        sys.exit("FAILED (%d): %s\n%s%s" % (result.returncode, " ".join(map(str, command)), result.stdout, result.stderr))
    return result.stdout


def comment_example(header):
    """The indented lines of a header's opening comment."""
    opening = re.match(r"(?://.*\n)+", header.read_text(encoding="utf-8"))[0]
    lines = [line[5:] for line in opening.splitlines() if line.startswith("//   ")]
    if len(lines) < 3:
        sys.exit("FAILED: no example in the opening comment of %s" % header)
    return "\n".join("  " + line for line in lines)


def examples(source):
    """Both header examples as functions; the client's gets its address and its key from the caller."""
    client = comment_example(source / "include/longhaul/client.h")
    client, replaced = re.subn(r'"127\.0\.0\.1:7700"', "address", client)
    client, keys = re.subn(r'"job\.key"', "key", client)
    if (replaced, keys) != (1, 1):
        sys.exit("FAILED: the example of client.h names no address or key")
    return """#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
inline longhaul::Status ClientExample(const std::string& address, const std::string& key,
                                      std::span<const float> gradient, std::span<float> weights) {
  const std::size_t n = gradient.size();
%s
  return status.ok() ? client->Leave() : status;
}
inline longhaul::Status ServerExample() {
%s
  return outcome;
}
""" % (client, comment_example(source / "include/longhaul/server.h"))


def make_consumer(source, here, folder, address):
    folder.mkdir()
    for name in ("CMakeLists.txt", "push_pull.cc"):
        shutil.copy(here / "consumer" / name, folder)
    shutil.copy(source / "examples/ps_lite_program.cc", folder)
    tutorial = (source / "docs/tutorials/embed.md").read_text(encoding="utf-8")
    for name, header in (("train", "client"), ("all_reduce", "offload")):
        program = re.search(r"```cpp\n(#include <longhaul/%s\.h>.*?)```" % header, tutorial, re.S)[1]
        (folder / (name + ".cc")).write_text(program.replace("127.0.0.1:7700", address), encoding="utf-8")
    (folder / "examples.h").write_text(examples(source), encoding="utf-8")


class Daemon:
    """The installed longhaul-server, for jobs of one worker, with a plug-in."""

    def __init__(self, prefix, key, plugin):
        self.process = subprocess.Popen(
            [str(prefix / "bin/longhaul-server"), "--listen", "127.0.0.1:0", "--workers", "1", "--key", str(key),
             "--plugin", str(plugin), "--progress", "json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.process.stdout:
            event = json.loads(line)
            if event.get("event") == "listening":
                self.address = event["address"]
                return
        sys.exit("FAILED: the daemon does not say that it listens")

    def stop(self):
        self.process.terminate()
        self.process.wait(20)


def use(way, programs, key, library_path=None):
    environment = dict(os.environ)
    if library_path:
        environment["LD_LIBRARY_PATH"] = str(library_path)
    run([programs / "push_pull", key], env=environment, timeout=60)
    run([programs / "train"], env=environment, cwd=key.parent, timeout=60)
    run([programs / "all_reduce"], env=environment, timeout=60)
    if (programs / "ps_lite_program").exists():
        use_ps_lite(programs / "ps_lite_program", key, environment)
    print("ok   %s" % way, flush=True)


def use_ps_lite(program, key, environment):
    """A scheduler, a server and a worker of one program."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = dict(environment, LONGHAUL_KEY=str(key), DMLC_NUM_WORKER="1", DMLC_NUM_SERVER="1",
                       DMLC_PS_ROOT_URI="127.0.0.1", DMLC_PS_ROOT_PORT=str(port))
    nodes = [subprocess.Popen([str(program)], env=dict(environment, DMLC_ROLE=role), stderr=subprocess.PIPE, text=True)
             for role in ("scheduler", "server", "worker")]
    try:
        words = [node.communicate(timeout=60)[1] for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    if any(node.returncode for node in nodes):
        sys.exit("FAILED: %s\n%s" % (program, "".join(words)))


def check_nothing_leaks(source, build):
    """No warning of this tree's and no folder but include/ is on a user's command line."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        if not entry["file"].endswith("train.cc"):
            continue
        words = entry["command"].split()
        folders = [word[2:] for word in words if word.startswith("-I")]
        if any("-Wconversion" in word or "-D" in word for word in words) or str(source) in folders:
            sys.exit("FAILED: flags leak into a user's command: %s" % entry["command"])
        return
    sys.exit("FAILED: no compile command of train.cc")


def check_shared(prefix, programs):
    """A user of the shared library links nothing of what it is made with, and sees only the public classes."""
    needed = run(["readelf", "-d", programs / "train"])
    if re.search(r"NEEDED.*(protobuf|ssl|crypto|spdlog|fmt|erasurecode)", needed):
        sys.exit("FAILED: inner libraries are linked by a user:\n%s" % needed)
    if not re.search(r"NEEDED.*liblonghaul\.so\.\d", needed):
        sys.exit("FAILED: no SONAME with a version:\n%s" % needed)
    shown = run(["nm", "-DC", "--defined-only", prefix / "lib/liblonghaul.so"])
    strange = [line for line in shown.splitlines()
               if not re.search(r"\blonghaul_\w+@@LONGHAUL_C_1$|\bLONGHAUL_(0|C_1)$|longhaul::(Client|JobSpec|LoadPlugin|Operation|OptionsFromEnvironment|Server|Status|StatusCodeName|DieOnBadResultAccess|offload::(Device|ShareOf|WorkStatusName))\b|ps::(Customer|Postoffice)::", line)]
    if strange:
        sys.exit("FAILED: liblonghaul.so shows more than its public classes:\n%s" % "\n".join(strange[:20]))


def check_programs(prefix):
    """longhaul-worker finds the trainer that is installed beside it."""
    words = ["--join", "127.0.0.1:9", "--insecure", "--data", "/nonexistent"]
    done = subprocess.run([str(prefix / "bin/longhaul-worker"), *words], capture_output=True, text=True, check=False)
    if done.returncode != 3 or "longhaul-trainer: NotFound: cannot open /nonexistent" not in done.stderr:
        sys.exit("FAILED (%d): longhaul-worker without a command\n%s" % (done.returncode, done.stderr))


def main(arguments):
    source, build = (pathlib.Path(word).resolve() for word in arguments[:2])
    cxx = arguments[2]
    here = pathlib.Path(__file__).resolve().parent
    work = pathlib.Path(tempfile.mkdtemp(prefix="longhaul-install-"))
    both, static = work / "both", work / "static"
    daemon = None
    try:
        for component in ("programs", "headers", "static", "shared"):
            run(["cmake", "--install", build, "--prefix", both, "--component", component])
        for component in ("headers", "static"):
            run(["cmake", "--install", build, "--prefix", static, "--component", component])
        check_programs(both)
        key = work / "job.key"
        run([both / "bin/longhaul", "keygen", "--out", key])
        # The example of a plug-in, by its own file.
        run(["cmake", "-S", source / "examples/plugin_sgd", "-G", "Ninja", "-B", work / "plugin", "-DCMAKE_PREFIX_PATH=%s" % both])
        run(["ninja", "-C", work / "plugin"])
        daemon = Daemon(both, key, work / "plugin/plugin_sgd.so")
        consumer = work / "consumer"
        make_consumer(source, here, consumer, daemon.address)

        generator = ["cmake", "-S", consumer, "-G", "Ninja"]
        for kind in ("shared", "static"):
            out = work / ("find_package-" + kind)
            run(generator + ["-B", out, "-DCMAKE_PREFIX_PATH=%s" % both, "-DCMAKE_CXX_COMPILER=%s" % cxx,
                             "-Dlonghaul_USE_STATIC_LIBS=%s" % ("ON" if kind == "static" else "OFF")])
            run(["ninja", "-C", out])
            check_nothing_leaks(source, out)
            use("find_package, %s" % kind, out, key)
        check_shared(both, work / "find_package-shared")

        for kind, prefix in (("shared", both), ("static", static)):
            out = work / ("pkg-config-" + kind)
            out.mkdir()
            environment = dict(os.environ, PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"))
            words = run(["pkg-config", "--cflags", "--libs", "longhaul"] + ["--static"] * (kind == "static"),
                        env=environment).split()
            for program in ("train", "push_pull", "all_reduce"):
                run([cxx, "-std=c++20"] + WARNINGS + [consumer / (program + ".cc"), "-o", out / program] + words)
            use("pkg-config, %s" % kind, out, key, prefix / "lib")

        # The whole library once more: without optimisation, by the faster compiler.
        out = work / "add_subdirectory"
        compiler = shutil.which("clang++") or cxx
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        for kind in ("static", "shared"):
            run(generator + launcher + ["-B", out, "-DLONGHAUL_SOURCE=%s" % source, "-DLONGHAUL_UNITY=ON",
                                        "-DCMAKE_CXX_FLAGS=-O0", "-DCMAKE_CXX_COMPILER=%s" % compiler,
                                        "-DBUILD_SHARED_LIBS=%s" % ("ON" if kind == "shared" else "OFF")])
            run(["ninja", "-C", out])
            check_nothing_leaks(source, out)
            use("add_subdirectory, %s" % kind, out, key)
        if any((out / "longhaul/bin").glob("*")):  # CMake makes the folder
            sys.exit("FAILED: the programs were built for a project that does not ask for them")
    finally:
        if daemon:
            daemon.stop()
        shutil.rmtree(work, ignore_errors=True)
    print("6 ways passed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
