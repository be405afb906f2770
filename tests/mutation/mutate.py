#!/usr/bin/env python3
"""Breaks the product line by line: every break must fail a test.

    mutate.py                 all of them: prints which test kills which; fails where one survives
    mutate.py LIST...         only these lists, for example rate
    mutate.py rate --only 3,17
    mutate.py --new           only those that never ran or that survived
    mutate.py --list          what is broken
    mutate.py --check         a ctest, builds nothing: every text to be replaced occurs exactly once, the page is as written
    mutate.py --write-page    writes docs/internals/mutations.md from the lists
    mutate.py --write         breaks, keeps in the lists which test killed what, and writes the page
    mutate.py --also FILTER   tests of test_transport that may kill as well, for example 'BbrModel*:TargetLossFit*'

A list is tests/mutation/breaks/NAME.json, an object a line: the file, the text that is replaced, what it becomes, the
requirement that this violates, what it means, and the program with the tests that are asked first (then all of the
program's; a program that is no gtest has arguments instead of a filter). Each break is made in a copy of the tree
(build/mutation/tree), where the program is built and run until its first failure.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LISTS = ROOT / "tests/mutation/breaks"
TREE = ROOT / "build/mutation/tree"
BUILD = ROOT / "build/mutation/build"
PAGE = ROOT / "docs/internals/mutations.md"
SECONDS = 240  # of one run: a break may make a test endless
FIELDS = {"file", "old", "new", "requirement", "meaning", "program", "filter"}


def lists():
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(LISTS.glob("*.json"))}


def store(name, rows):
    text = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    (LISTS / (name + ".json")).write_text("[\n" + text + "\n]\n", encoding="utf-8")


def check(everything):
    """What is wrong with the lists."""
    wrong = []
    for name, rows in everything.items():
        for number, row in enumerate(rows, 1):
            lacks = FIELDS - row.keys()
            if lacks or not (ROOT / row["file"]).is_file():
                wrong.append(f"{name} {number}: without {sorted(lacks) or row['file']}")
                continue
            found = (ROOT / row["file"]).read_text(encoding="utf-8").count(row["old"])
            if found != 1:
                wrong.append(f"{name} {number}: {found} times in {row['file']}: {row['old']!r}")
            if row["old"] == row["new"]:
                wrong.append(f"{name} {number}: changes nothing")
    if not wrong and PAGE.read_text(encoding="utf-8") != page(everything):
        wrong.append(f"{PAGE.relative_to(ROOT)} is not what the lists say: mutate.py --write-page")
    return wrong


def run(command, **options):
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, errors="replace", **options)


def copy_tree():
    """What git knows of, and new files: only what differs is written, so that builds stay short."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                            capture_output=True).stdout.decode().split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for old in [path for path in TREE.rglob("*") if path.is_file()]:
        if str(old.relative_to(TREE)) not in wanted:
            old.unlink()
    for name in wanted:
        source, copy = ROOT / name, TREE / name
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)


def build(targets):
    """The compiler's words where it fails."""
    done = run(["cmake", "--build", str(BUILD), "--parallel", "2", "--target", *targets])
    return "" if done.returncode == 0 else done.stdout + done.stderr


def first_failure(program, tests):
    """The first test that fails, "" when none does."""
    gtest = program.startswith("test_")
    arguments = ["--gtest_fail_fast", "--gtest_brief=1", f"--gtest_filter={tests}"] if gtest else tests.split()
    command, environment = [str(BUILD / "bin" / program), *arguments], None
    if program == "pytest":  # the filter is a file of tests/python, or of a folder beside it, and -k with one expression without spaces
        file = arguments[0] if "/" in arguments[0] else "python/" + arguments[0]
        command = ["/usr/bin/python3", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/" + file, *arguments[1:]]
        environment = {**os.environ, "LONGHAUL_PROGRAMS": str(BUILD / "bin"), "PYTHONPATH": str(TREE / "python"),
                       "LONGHAUL_LIBRARY": str(BUILD / "lib/liblonghaul.so"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = run(command, timeout=SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        return f"{tests}: no end within {SECONDS} s"
    if done.returncode == 0:
        return ""
    failed = re.search(r"^(?:\[  FAILED  \] |FAILED tests/)([\w/]+\.[\w/:]+)", done.stdout, re.MULTILINE)
    if failed:
        return failed[1]
    checked = re.search(r"^.*(LH_CHECK|[Cc]heck failed).*$", done.stdout + done.stderr, re.MULTILINE)
    return checked[0].strip()[:90] if checked else f"{program} {'' if gtest else tests} ends with {done.returncode}"


def killer(row, also):
    first = row["filter"]
    runs = [(row["program"], first)]
    if row["program"].startswith("test_") and not first.startswith("-"):
        runs.append((row["program"], "*-" + first))
    for program, tests in runs + ([("test_transport", also)] if also else []):
        failed = first_failure(program, tests)
        if failed:
            return failed
    return ""


# What has to be built for a program that starts others.
BESIDES = {"test_e2e": ["longhaul-server", "longhaul-worker", "longhaul", "longhaul-wan", "longhaul-offload"],
           "test_offload_shm": ["longhaul-offload"], "test_offload_udp": ["longhaul-offload"],
           "test_attack": ["longhaul-server", "longhaul-worker", "longhaul", "longhaul-wan"]}


def targets_of(row, also):
    if row["program"] == "pytest" and row["filter"].startswith("kubernetes/"):
        return ["longhaul_shared", "longhaul-server"]
    if row["program"] == "pytest":
        return ["longhaul_shared", "longhaul-server", "longhaul-worker", "example_launched", "longhaul", "ps_lite_modes",
                "example_ps_lite_program", "longhaul_learning_exchange"]
    return [row["program"], *BESIDES.get(row["program"], []), *(["test_transport"] if also else [])]


def broken(row, also):
    """What kills this one: a test, the compiler, or nothing ("")."""
    path = TREE / row["file"]
    before = path.read_bytes()
    try:
        path.write_bytes(before.replace(row["old"].encode(), row["new"].encode(), 1))
        words = build(targets_of(row, also))
        if words:
            errors = [line for line in words.splitlines() if "error:" in line]
            return "the compiler: " + (errors or [words])[0].strip()[-90:]
        return killer(row, also)
    finally:
        path.write_bytes(before)


def page(everything):
    lines = [
        "# What breaks when the product does", "",
        "Each row is a break of one line, the requirement that it violates, and the first test that notices. The lists are",
        "`tests/mutation/breaks/*.json`. In `rate`: A3 bandwidth estimation in every cycle, A4 the initial rate of a window, A5 loss",
        "inside a window, A6 the target loss by least squares; l0 (the path's own loss), experiments and max_bw are bounded.", "",
        "Written by `tests/mutation/mutate.py --write`; the ctest `mutation.lists` fails when a text that is to be broken is gone.", ""]
    for name, rows in everything.items():
        lines += [f"## {name}", "", "|  | break | file | requirement | killed by |", "|---|---|---|---|---|"]
        for number, row in enumerate(rows, 1):
            killed = row.get("killed_by")
            by = "not yet run" if killed is None else f"`{killed}`" if killed else "**survives**"
            lines.append(f"| {number} | {row['meaning']} | `{row['file']}` | {row['requirement']} | {by} |")
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", metavar="LIST")
    for flag in ("--list", "--check", "--new", "--write", "--write-page"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--only", default="", metavar="NUMBERS")
    parser.add_argument("--also", default="", metavar="FILTER")
    arguments = parser.parse_args()
    everything = lists()
    if unknown := set(arguments.lists) - everything.keys():
        sys.exit(f"no such list: {', '.join(sorted(unknown))}; there are {', '.join(everything)}")
    chosen = {name: everything[name] for name in arguments.lists or everything}
    if arguments.write_page:
        PAGE.write_text(page(everything), encoding="utf-8")
    if arguments.list:
        for name, rows in chosen.items():
            for number, row in enumerate(rows, 1):
                print(f"{name} {number:3} {row['requirement']:10} {row['meaning']} ({row['file']})")
        return 0
    wrong = check(everything)
    if arguments.check or arguments.write_page or wrong:
        print("\n".join(wrong) or f"{sum(map(len, everything.values()))} breaks, each of a text that occurs once")
        return bool(wrong)
    return make(everything, chosen, arguments)


def make(everything, chosen, arguments):
    TREE.mkdir(parents=True, exist_ok=True)
    copy_tree()
    configured = run(["cmake", "--preset", "release", "-B", str(BUILD), "-DLONGHAUL_UNITY=OFF", "-DLONGHAUL_BENCH=OFF",
                      "-DLONGHAUL_WERROR=OFF", *(["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else [])])
    wanted = {int(number) for number in arguments.only.split(",") if number}
    programs = {target: None for rows in chosen.values() for row in rows for target in targets_of(row, arguments.also)}
    words = configured.stderr if configured.returncode else build(list(programs))
    if words:
        sys.exit(words)
    survivors, total = [], 0
    print("| break | requirement | killed by |")
    for name, rows in chosen.items():
        for number, row in enumerate(rows, 1):
            if (wanted and number not in wanted) or (arguments.new and row.get("killed_by")):
                continue
            total += 1
            row["killed_by"] = broken(row, arguments.also)
            if not row["killed_by"]:
                survivors.append(f"{name} {number}")
            print(f"| {name} {number} {row['meaning']} | {row['requirement']} | {row['killed_by'] or 'SURVIVES'} |", flush=True)
            if arguments.write:
                store(name, rows)
    print(f"{total - len(survivors)} of {total} are noticed" + (f"; not: {', '.join(survivors)}" if survivors else ""))
    if arguments.write:
        PAGE.write_text(page(everything), encoding="utf-8")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
