#!/usr/bin/env python3
"""Checks the models of the protocol with spin: every state that can be reached.

    check.py               all checks, then all broken models: a table of sizes and times
    check.py NAME...       these checks, for example rounds.quorum
    check.py --broken      the models without one of their guards: each must fail, and for the reason that its row says
    check.py --large       what is too large for every run of the tests
    check.py --list
    check.py --json FILE   both kinds of checks; writes their sizes and times

A check fails on an assertion, on a run without an end (a cycle), and when the search was not complete. It prints the run
that leads there, in words.
"""
import json
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
MEGABYTES = 3500  # of one search: the largest of the tests takes 1,300
DEPTH = 2000      # steps of a run: the longest has 150
LIMIT = 600       # seconds of one search on a busy machine: the longest takes 25 on a quiet one

ONE = {"SERVERS": 1, "FAULTS": 2, "LATE": 1}
KEEPS = {**ONE, "CHECKPOINTS": 1}
TWO = {"FAULTS": 1, "COARSE": 1}
THREE = {"WORKERS": 3, "SPARES": 0, "FAULTS": 2, "COARSE": 1}
QUORUM = {"SERVERS": 1, "WORKERS": 3, "QUORUM": 2, "GRACE": 1, "FAULTS": 1}
LATE = {"GRACE": 1, "ROUNDS": 4, "FAULTS": 1}

# Name: the model, its settings, and whether cycles are looked for as well (twice the states).
CHECKS = {
    "rounds.one_server": ("rounds", KEEPS, False),
    "rounds.one_server_ends": ("rounds", ONE, True),
    "rounds.one_server_passed": ("rounds", {"SERVERS": 1, "FAULTS": 2}, True),
    "rounds.two_servers": ("rounds", TWO, False),
    "rounds.two_servers_end": ("rounds", {**TWO, "ROUNDS": 2}, True),
    "rounds.two_servers_crash": ("rounds", {"SPARES": 0, "FAULTS": 3}, True),
    "rounds.three_workers": ("rounds", THREE, False),
    "rounds.quorum": ("rounds", QUORUM, False),
    "rounds.quorum_ends": ("rounds", {**QUORUM, "ROUNDS": 2}, True),
    "clocks.two_servers": ("clocks", {"FAULTS": 1}, False),
    "clocks.two_servers_end": ("clocks", {"FAULTS": 1, "CLOCKS": 2}, True),
    "clocks.three_workers": ("clocks", {"SERVERS": 1, "WORKERS": 3, "FAULTS": 2}, False),
    "epochs.all_in": ("epochs", {"FAULTS": 1}, True),
    "epochs.late": ("epochs", LATE, False),
}

LARGE = {
    "rounds.quorum_two_servers": ("rounds", {**QUORUM, "SERVERS": 2, "SPARES": 0, "COARSE": 1, "ROUNDS": 2}, False),
    "rounds.two_faults": ("rounds", {**TWO, "FAULTS": 2, "ROUNDS": 2}, False),
}

# Guards that are dropped, the model, its settings, and the comment of the assertion that fails.
BROKEN = [
    ("LOG", "rounds", ONE, "acknowledged, and does not count"),
    ("BIT", "rounds", ONE, "added twice in one round"),
    ("COUNTED", "rounds", QUORUM, "counted in another round already"),
    ("COUNTED FRESH_ANSWER", "rounds", ONE, "counted in another round already"),
    ("FENCE", "rounds", ONE, "counted in another round already"),
    ("FENCE_IN_LOG", "rounds", ONE, "counted in another round already"),
    ("OPENER", "rounds", ONE, "counted in another round already"),
    ("KEEP", "rounds", KEEPS, "acknowledged, and not on the disk"),
    ("KEEP_COUNTED", "rounds", KEEPS, "counted in another round already"),
    ("RESEND", "rounds", ONE, "waits for ever"),
    ("QUORUM", "rounds", QUORUM, "a round of fewer"),
    ("ALIGNED", "rounds", TWO, "waits for ever"),
    ("PASSED", "rounds", TWO, "waits for ever"),
    ("ENTRY", "rounds", THREE, "waits for ever"),
    ("BOUND", "clocks", {"FAULTS": 1}, "too far ahead of the slowest"),
    ("DURABLE_BOUND", "clocks", {"FAULTS": 1}, "by what it had pushed before"),
    ("DURABLE_ANSWER", "clocks", {"SERVERS": 1, "FAULTS": 1}, "applied twice, or out of turn"),
    ("START", "clocks", {"FAULTS": 1}, "too far ahead of the slowest"),
    ("LOG", "clocks", {"FAULTS": 1}, "acknowledged, and not on the disk"),
    ("RESEND", "clocks", {"FAULTS": 1}, "waits for ever"),
    ("EPOCH", "epochs", LATE, "remember different shifts"),
    ("BELONGS", "epochs", {"FAULTS": 1}, "remember different shifts"),
    ("EPOCH_IN_LOG", "epochs", {"FAULTS": 1}, "remember different shifts"),
    ("ANNOUNCEMENT", "epochs", {"FAULTS": 1}, "refused, and it came in time"),
]


def run(command, folder, **options):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def why(folder, model, defines):
    """The run that fails, in words, and the comment of the assertion."""
    replay = run(["spin", "-t", *defines, model + ".pml"], folder).stdout
    at = re.search(r"^spin: (\w+\.pml):(\d+), Error: assertion violated", replay, re.MULTILINE)
    if not at:
        return replay, "a cycle" if "CYCLE" in replay else "?"
    line = (HERE / at[1]).read_text(encoding="utf-8").splitlines()[int(at[2]) - 1]
    steps = replay[:at.start()].splitlines()
    return "\n".join(step.strip() for step in steps if not step.startswith("spin:")), line.partition("// ")[2]


def search(model, settings, cycles, optimize="-O2"):
    """(what is wrong, the run that shows it, the size of the search)."""
    defines = [f"-D{name}={value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory(prefix="longhaul-model-") as folder:
        for source in HERE.glob("*.pml"):
            (pathlib.Path(folder) / source.name).write_bytes(source.read_bytes())
        made = run(["spin", "-a", *defines, model + ".pml"], folder)
        if made.returncode or "rror" in made.stdout:
            return "spin: " + made.stdout, "", ""
        kind = ["-DNP", "-DNOFAIR"] if cycles else ["-DSAFETY"]
        made = run(["cc", optimize, "-w", "-DCOLLAPSE", f"-DMEMLIM={MEGABYTES}", "-DVECTORSZ=512", *kind, "-o", "pan", "pan.c"],
                   folder)
        if made.returncode:
            return "cc: " + made.stdout, "", ""
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        said = run(["./pan", f"-m{DEPTH}", "-w24", *(["-l"] if cycles else [])], folder, timeout=LIMIT).stdout
        seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        if "max search depth too small" in said:
            return f"deeper than {DEPTH} steps: the search is not complete", "", ""
        result = re.search(r"depth reached (\d+), errors: (\d+)\s+(\d+) states, stored", said)
        if not result:
            return "pan: " + said, "", ""
        memory = re.search(r"([\d.]+)\s+total actual memory", said)
        size = {"states": int(result[3]), "depth": int(result[1]), "seconds": round(seconds, 1), "megabytes": round(float(memory[1]))}
        if result[2] != "0":
            steps, reason = why(folder, model, defines)
            return reason, steps, size
        if "Search not completed" in said or "out of memory" in said:
            return "the search is not complete: " + said, "", ""
        return "", "", size


def check(name):
    model, settings, cycles = {**CHECKS, **LARGE}[name]
    wrong, steps, size = search(model, settings, cycles)
    if wrong:
        print(f"{steps}\n{name}: {wrong}")
        return None
    text = " ".join(f"{key}={value}" for key, value in settings.items())
    row = {"name": name, "settings": text, "cycles": cycles, "large": name in LARGE, **size}
    print(row, flush=True)
    return row


def check_broken():
    """The guards whose loss is not noticed."""
    survivors = []
    for guards, model, settings, expected in BROKEN:
        dropped = {**settings, **{"DROP_" + guard: 1 for guard in guards.split()}}
        reason = search(model, dropped, False, "-O0")[0]
        noticed = expected in reason
        print(f"| {model} | {guards} | {reason} |{'' if noticed else '  NOT AS EXPECTED: ' + expected}", flush=True)
        survivors += [] if noticed else [(model, guards)]
    for source in HERE.glob("*.pml"):
        known = {guard for guards, model, _, _ in BROKEN if model == source.stem for guard in guards.split()}
        unknown = set(re.findall(r"\bDROP_(\w+)", source.read_text(encoding="utf-8"))) - known
        survivors += [(source.stem, guard + ", which has no row here") for guard in sorted(unknown)]
    print("".join(f"{model}: without {guard} the check does not fail as expected\n" for model, guard in survivors))
    return not survivors


def main(arguments):
    if arguments == ["--list"]:
        print("\n".join(CHECKS))
        return 0
    if arguments == ["--broken"]:
        return 0 if check_broken() else 1
    if len(arguments) == 2 and arguments[0] == "--json":
        rows = [check(name) for name in [*CHECKS, *LARGE]]
        pathlib.Path(arguments[1]).write_text(json.dumps({"ok": all(rows), "checks": rows}), encoding="utf-8")
        return 0 if all(rows) else 1
    if arguments == ["--large"]:
        arguments = list(LARGE)
    if not set(arguments) <= CHECKS.keys() | LARGE.keys():
        print(__doc__, file=sys.stderr)
        return 2
    good = [check(name) for name in arguments or CHECKS]
    if not arguments:
        good.append(check_broken())
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
