"""deploy/containers, read: what they install, copy and run as. (To build them a registry has to be reachable.)

With LONGHAUL_PROGRAMS the shared libraries that the programs need are looked up: a package that a container installs has each.
"""
import os
import pathlib
import re
import subprocess

import pytest
from resources import ROOT

FILES = sorted((ROOT / "deploy/containers").glob("*.containerfile"))
NAMES = [file.name for file in FILES]


def instructions(name):
    text = re.sub(r"^#.*\n", "", (ROOT / "deploy/containers" / name).read_text(encoding="utf-8"), flags=re.M)
    return [line.split(None, 1) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]


def stages(name):
    """Of each FROM: (image, its instructions)."""
    found = []
    for word, rest in instructions(name):
        if word == "FROM":
            found.append((rest.split()[0], []))
        else:
            found[-1][1].append((word, rest))
    return found


def installed(name):
    [command] = [rest for word, rest in stages(name)[-1][1] if word == "RUN"]
    [words] = re.findall(r"apt-get install -y --no-install-recommends(.*?)&&", command)
    return words.split()


def copied(name):
    return [rest.split()[1:] for word, rest in stages(name)[-1][1] if word == "COPY"]


def built():
    """What the build makes and installs."""
    text = "".join(file.read_text() for file in sorted((ROOT / "cmake").glob("*.cmake")))
    return set(" ".join(re.findall(r"install\(TARGETS (longhaul[ -][^\n]*?)\s*\n?\s*RUNTIME", text)).split())


def test_there_is_one_for_server_worker_and_operator():
    assert NAMES == ["operator.containerfile", "server.containerfile", "worker.containerfile"]


@pytest.mark.parametrize("name", NAMES)
def test_only_words_of_the_language(name):
    assert {word for word, _ in instructions(name)} <= {"FROM", "RUN", "COPY", "WORKDIR", "USER", "EXPOSE", "CMD", "ENTRYPOINT"}


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_is_debian_12(name):
    assert [image for image, _ in stages(name)] == ["debian:12-slim"] * 2


@pytest.mark.parametrize("name", NAMES)
def test_runs_as_a_user_by_number_that_is_not_root(name):
    users = [rest for word, rest in stages(name)[-1][1] if word == "USER"]
    assert users and re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", users[-1])


@pytest.mark.parametrize("name", NAMES)
def test_packages_are_debians(name):
    """Of the project's list, or known to apt here."""
    listed = {line.split()[1] for line in (ROOT / "tools/packages.txt").read_text().splitlines() if not line.startswith("#")}
    assert installed(name)
    for package in installed(name):
        known = package in listed or subprocess.run(["apt-cache", "show", package], capture_output=True).returncode == 0 or \
            subprocess.run(["dpkg-query", "-W", package], capture_output=True).returncode == 0
        assert known, f"{package}: neither in tools/packages.txt nor known to apt"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_is_built(name):
    binaries = [pathlib.PurePath(source).name for source, _ in copied(name) if source.startswith("/src/build/release/bin/")]
    assert binaries
    assert set(binaries) <= built()
    for source, _ in copied(name):
        assert source.startswith("/src/build/release/bin/") or (ROOT / source.removeprefix("/src/")).exists(), source


@pytest.mark.parametrize("name", NAMES)
def test_starts_what_it_has(name):
    [command] = [rest for word, rest in stages(name)[-1][1] if word in ("CMD", "ENTRYPOINT")]
    program = re.match(r'\["([^"]+)"', command)[1]
    assert program in [pathlib.PurePath(source).name for source, _ in copied(name)]


def test_pods_find_what_their_commands_name():
    """Server and engine run in the operator's --server-image, or else in the job's."""
    for name, programs in (("server.containerfile", {"longhaul-server", "longhaul-offload"}), ("worker.containerfile", {"longhaul-server", "longhaul-worker", "longhaul-offload", "longhaul-trainer"})):
        assert programs <= {pathlib.PurePath(source).name for source, _ in copied(name)}


# --- The libraries that real programs need.
def closure(packages):
    """With what they depend on, as installed here, and with what every Debian system has."""
    essential = subprocess.run(["dpkg-query", "-W", "-f=${Package} ${Essential} ${Priority}\n"], capture_output=True, text=True).stdout
    found, wait = set(), list(packages) + [row.split()[0] for row in essential.splitlines() if "yes" in row.split() or "required" in row.split()]
    while wait:
        package = wait.pop()
        if package in found:
            continue
        found.add(package)
        depends = subprocess.run(["dpkg-query", "-W", "-f=${Depends}, ${Pre-Depends}\n", package], capture_output=True, text=True).stdout
        wait += re.findall(r"(?:^|[,|] *)([a-z0-9][a-z0-9+.-]+)", depends)
    return found


def package_of(library):
    """As dpkg has it; / and /usr are one."""
    real = os.path.realpath(library)
    for path in (library, real, real.removeprefix("/usr"), "/usr" + real):
        answer = subprocess.run(["dpkg-query", "-S", path], capture_output=True, text=True).stdout
        if answer:
            return answer.split(":")[0]
    raise AssertionError(f"{library}: of no package")


@pytest.mark.parametrize("name", NAMES)
def test_every_library_of_the_programs_is_installed(name):
    if "LONGHAUL_PROGRAMS" not in os.environ:
        pytest.skip("LONGHAUL_PROGRAMS names no folder of programs")
    programs = [pathlib.Path(os.environ["LONGHAUL_PROGRAMS"]) / pathlib.PurePath(source).name for source, _ in copied(name) if "/bin/" in source]
    programs = [program for program in programs if program.exists()]
    if not programs:
        pytest.skip("none of its programs is built")
    have = closure(installed(name))
    for program in programs:
        needed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"=> (/\S+)", needed):
            assert package_of(library) in have, f"{program.name} needs {library}"


@pytest.mark.parametrize("name", ["server.containerfile", "worker.containerfile"])
def test_libraries_are_asked_for_and_not_by_chance(name):
    """liberasurecode opens ISA-L by name, so that ldd does not see it."""
    assert {"liberasurecode1", "libisal2"} <= set(installed(name))
