#!/usr/bin/env python3
"""What the tiers T2 (a real control plane) and T3 (a real kubelet) have measured, under docs/results, and whether it still holds.

    LONGHAUL_WRITE_RESULTS=1 pytest tests/kubernetes/test_operator.py      # writes docs/results/kubernetes_t2.json
    evidence.py check                                                      # names every file that is missing, or older than the sources

Not every machine can run these tiers. Their results are committed therefore, each with a digest of the operator's sources, of what
is applied to a cluster, and of the tier's tests; a test that runs everywhere fails when one of them has changed since.
"""
import datetime
import hashlib
import json
import os
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of a tier: its test, which writes the file, and what else decides what it shows.
TIERS = {"t2": ["tests/kubernetes/test_operator.py", "tests/kubernetes/pod_processes.py", "tests/kubernetes/control_plane.py"],
         "t3": ["tests/kubernetes/test_pods.py", "tests/kubernetes/node.py", "tests/kubernetes/control_plane.py",
                "deploy/containers/operator.containerfile", "deploy/containers/worker.containerfile"]}
FOLDERS = ["operator", "deploy/kubernetes"]
FIGURES = {}  # of the tests of this process: {test: {what: measured}}


def figure(test, **measured):
    FIGURES.setdefault(test, {}).update({what.replace("_", " "): value for what, value in measured.items()})
    print(f"{test}: {measured}")


def path_of(tier, root=ROOT):
    return root / f"docs/results/kubernetes_{tier}.json"


def sources(tier, root=ROOT):
    found = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return sorted(found + [root / path for path in TIERS[tier] if (root / path).exists()])


def digest(tier, root=ROOT):
    total = hashlib.sha256()
    for path in sources(tier, root):
        total.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def remedy(tier):
    return (f"`tools/dev kube{' --pods' if tier == 't3' else ''}`, then `LONGHAUL_WRITE_RESULTS=1 LONGHAUL_PROGRAMS=build/release/bin "
            f"LONGHAUL_LIBRARY=build/release/lib/liblonghaul.so.0 PYTHONPATH=python /usr/bin/python3 -m pytest -q {TIERS[tier][0]}`, "
            "`tools/results write`, and commit what they write")


def problem(tier, root=ROOT):
    """In words, None where the result holds."""
    path = path_of(tier, root)
    if not path.exists():
        return f"{path.relative_to(root)} is missing: " + remedy(tier)
    if json.loads(path.read_text(encoding="utf-8"))["digest"] == digest(tier, root):
        return None
    return (f"{path.relative_to(root)} is older than the sources that it is about ({', '.join(FOLDERS)}, {', '.join(TIERS[tier])}): "
            + remedy(tier))


def machine():
    names = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if line.startswith("model name")]
    return f"{os.cpu_count()} cores of {names[0] if names else platform.processor()}, Linux {platform.release().split('-')[0]}"


def commit():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    changed = git("diff", "--quiet", "HEAD", "--", *FOLDERS).returncode != 0
    return git("rev-parse", "--short", "HEAD").stdout.strip() + (" with changes" if changed else "")


def write(tier, figures, seconds):
    """figures: {test: {what: measured}}, in words as they are shown. Returns whether a file was written: it has to be asked for, since
    a measurement is committed by intent."""
    if os.environ.get("LONGHAUL_WRITE_RESULTS") != "1":
        return False
    rows = [[test, what, str(measured)] for test, each in figures.items() for what, measured in each.items()]
    content = {"commit": commit(), "date": datetime.date.today().isoformat(), "machine": machine(), "seconds": round(seconds),
               "command": f"pytest {TIERS[tier][0]}", "digest": digest(tier),
               "result": {"head": ["test", "what", "measured"], "rows": rows}}
    path_of(tier).write_text(json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return True


def check(root=ROOT):
    return [words for words in (problem(tier, root) for tier in TIERS) if words]


def main():
    if sys.argv[1:] != ["check"]:
        print(__doc__, file=sys.stderr)
        return 2
    found = check()
    print("\n".join(found) or "every result holds")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
