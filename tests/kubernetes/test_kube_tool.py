"""tools/kube without a network: what is done again and what is not, and what failures say."""
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import time
import types

import pytest
from resources import ROOT

loader = importlib.machinery.SourceFileLoader("kube_tool", str(ROOT / "tools/kube"))
kube = importlib.util.module_from_spec(importlib.util.spec_from_loader("kube_tool", loader))
loader.exec_module(kube)


@pytest.fixture
def preparation(tmp_path):
    return kube.Preparation(tmp_path)


def test_the_folder_is_outside_the_tree(monkeypatch, tmp_path):
    monkeypatch.delenv("LONGHAUL_KUBE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kube.cache_folder() == tmp_path / "longhaul/kube"
    monkeypatch.setenv("LONGHAUL_KUBE_CACHE", "/elsewhere")
    assert kube.cache_folder() == pathlib.Path("/elsewhere")
    monkeypatch.delenv("LONGHAUL_KUBE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kube.cache_folder() == tmp_path / ".cache/longhaul/kube"
    assert ROOT not in kube.cache_folder().parents


def test_a_step_is_done_once_and_again_when_what_it_is_made_from_changes(preparation):
    def due(made_from):
        with preparation.step("a", made_from, "a step") as due:
            return due
    assert [due("1"), due("1"), due("2"), due("2")] == [True, False, True, False]


def test_a_step_that_fails_is_due_again(preparation):
    with pytest.raises(kube.Failed):
        with preparation.step("a", "1", "a step") as due:
            assert due
            preparation.run(["false"])
    with preparation.step("a", "1", "a step") as due:
        assert due


def test_a_failure_shows_the_last_lines_and_where_all_of_them_are(preparation):
    with pytest.raises(kube.Failed) as failure:
        preparation.run(["sh", "-c", "echo first; for i in $(seq 20); do echo line $i; done; exit 7"])
    words = str(failure.value)
    assert "sh ended with 7" in words and "line 20" in words and "first" not in words
    assert str(preparation.log) in words and "tools/dev kube" in words
    assert "first" in preparation.log.read_text()


def test_programs_are_whole_or_not_there(preparation, tmp_path):
    made = tmp_path / "made"
    made.write_text("#!/bin/sh\n")
    preparation.install(made)
    assert os.access(tmp_path / "bin/made", os.X_OK)
    assert list((tmp_path / "bin").iterdir()) == [tmp_path / "bin/made"]


def test_too_little_room_is_said_before_anything_is_done(preparation, monkeypatch):
    monkeypatch.setattr(kube.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10**9))
    monkeypatch.setattr(kube.shutil, "which", lambda name: name)
    with pytest.raises(kube.Failed, match="1.0 GB free.*LONGHAUL_KUBE_CACHE"):
        preparation.prepare(pods=False)
    assert not (preparation.folder / "apt").exists()


def test_a_missing_tool_is_named_with_the_remedy(preparation, monkeypatch):
    monkeypatch.setattr(kube.shutil, "which", lambda name: None if name == "dpkg-source" else name)
    with pytest.raises(kube.Failed, match="dpkg-source missing: `tools/dev setup build kube`"):
        preparation.prepare(pods=False)


def test_where_says_whether_it_is_ready(tmp_path):
    def where(*words):
        done = subprocess.run([sys.executable, str(ROOT / "tools/kube"), "--where", *words], env={**os.environ, "LONGHAUL_KUBE_CACHE": str(tmp_path)},
                              capture_output=True, text=True)
        assert done.stdout.strip() == str(tmp_path)
        return done.returncode
    assert where() == 1
    (tmp_path / "bin").mkdir()
    for name in ["etcd", *kube.CONTROL_PLANE]:
        assert where() == 1
        (tmp_path / "bin" / name).write_text("")
        os.chmod(tmp_path / "bin" / name, 0o755)
    assert (where(), where("--pods")) == (0, 1)


def test_an_interruption_ends_what_it_started(preparation, monkeypatch, tmp_path):
    """Its children, too: `make` starts many."""
    marks = tmp_path / "pid"

    def interrupt(_):
        if marks.exists() and marks.read_text().endswith("\n"):
            raise KeyboardInterrupt
    monkeypatch.setattr(kube.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        preparation.run(["sh", "-c", f"sleep 600 & echo $! > {marks}; wait"])
    monkeypatch.undo()
    child = int(marks.read_text())
    end = time.monotonic() + 20
    while time.monotonic() < end and running(child):
        time.sleep(0.05)
    assert not running(child)


def running(pid):
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_packages_are_of_groups_that_setup_does_not_install():
    default = re.search(r"\[ \$# -gt 0 \] \|\| set -- (.*)$", (ROOT / "tools/dev").read_text(), re.M)[1].split()
    for group in ("kube", "kube-cache", "pods-cache"):
        assert kube.packages_of(group) and group not in default
    assert {"etcd-server", "golang-github-modern-go-reflect2-dev"} <= set(kube.packages_of("kube-cache"))
    assert {"containerd", "runc"} <= set(kube.packages_of("pods-cache"))


def test_programs_are_compiled_once_and_without_what_an_interruption_left(preparation, monkeypatch):
    made = preparation.folder / "source/_output/local/bin/linux/amd64"
    made.mkdir(parents=True)
    (made / "deepcopy-gen").write_text("")  # as make leaves one that it could not make
    (made / "defaulter-gen").write_text("whole")
    ran = []

    def make(command, cwd, env, progress):
        assert not (made / "deepcopy-gen").exists() and (made / "defaulter-gen").exists()
        assert (env["CGO_ENABLED"], env["GOPROXY"], env["KUBE_GIT_VERSION"]) == ("0", "off", "v1.20.2")
        ran.append(command[1])
        (made / command[1].split("/")[-1]).write_text("program")
    monkeypatch.setattr(preparation, "run", make)
    for _ in range(2):
        preparation.compile(["kube-apiserver", "kubectl"], "1.20.5+really1.20.2-1.1+deb12u1")
    assert ran == ["WHAT=cmd/kube-apiserver", "WHAT=cmd/kubectl"]
    assert (preparation.folder / "bin/kubectl").read_text() == "program"
    preparation.compile(["kubectl"], "1.20.5+really1.20.2-1.1+deb12u2")
    assert ran[2:] == ["WHAT=cmd/kubectl"]
