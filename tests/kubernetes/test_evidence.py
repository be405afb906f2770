"""Committed results of T2 and T3 are as old as the operator's sources. Runs everywhere (T0)."""
import json

import evidence
import pytest


@pytest.mark.parametrize("tier", evidence.TIERS)
def test_a_committed_result_is_of_these_sources(tier):
    words = evidence.problem(tier)
    assert words is None, words


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree with results that hold."""
    monkeypatch.setattr(evidence, "TIERS", {"t2": evidence.TIERS["t2"]})
    for path in ("operator/plan/a.cc", "deploy/kubernetes/a.yaml", "docs/results/x", *evidence.TIERS["t2"]):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1")
    assert "kubernetes_t2.json is missing" in evidence.check(tmp_path)[0]
    evidence.path_of("t2", tmp_path).write_text(json.dumps({"digest": evidence.digest("t2", tmp_path)}))
    assert evidence.check(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize("path", ["operator/plan/a.cc", "deploy/kubernetes/a.yaml", evidence.TIERS["t2"][0]])
def test_a_result_does_not_outlive_a_change(tree, path):
    (tree / path).write_text("2")
    [words] = evidence.check(tree)
    assert "docs/results/kubernetes_t2.json is older" in words and "LONGHAUL_WRITE_RESULTS=1" in words and "tools/dev kube" in words


def test_a_result_does_not_outlive_a_file_that_is_new_or_moves(tree):
    (tree / "operator/main.cc").write_text("1")
    assert len(evidence.check(tree)) == 1
    (tree / "operator/main.cc").unlink()
    (tree / "operator/plan/a.cc").rename(tree / "operator/plan/b.cc")
    assert len(evidence.check(tree)) == 1


def test_a_result_has_nothing_to_do_with_other_files(tree):
    (tree / "docs/results/x").write_text("2")
    (tree / "operator/__pycache__").mkdir()
    (tree / "operator/__pycache__/a.pyc").write_text("2")
    assert evidence.check(tree) == []


def test_nothing_is_written_unasked(monkeypatch):
    monkeypatch.delenv("LONGHAUL_WRITE_RESULTS", raising=False)
    assert evidence.write("t2", {}, 0) is False
