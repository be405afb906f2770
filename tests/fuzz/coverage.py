#!/usr/bin/env python3
"""What fuzzers have reached, from the logs of runs with -print_coverage=1: coverage.py [--files] [--floor FILE] LOG...

Functions, and edges of the control flow graph, by folder (with --files by source file), of everything that the programs
contain outside of tests. What several fuzzers contain counts as far as the best of them got in each function, so the
numbers are lower bounds of what all of them reached together. Many edges lead to reports of sanitizers and
failed checks, which no input may reach.

Fails when a log says nothing of this repository's code (no symbolizer, another format), and with --floor when a
folder of that file has reached a smaller share of its edges than it says there."""
import argparse
import collections
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FUNCTION = re.compile(r"^(?:UN)?COVERED_FUNC: hits: \d+ edges: (\d+)/(\d+) (.*) (\S+):(\d+)$")


def of_ours(path):
    """Relative to the repository, wherever it was built; None: a header of the system, or generated."""
    path = os.path.normpath(path)
    if not os.path.isabs(path):  # relative to the build folder, which lies at any depth
        path = re.sub(r"^(\.\./)+", "", path)
    elif path.startswith(f"{ROOT}/"):
        path = path[len(f"{ROOT}/"):]
    return path if (ROOT / path).is_file() and not path.startswith(("build/", "tests/", "/")) else None


def functions(log):
    with open(log, errors="replace") as lines:
        for line in lines:
            match = FUNCTION.match(line)
            path = match and of_ours(match[4])
            if path:
                yield (path, match[3], match[5]), int(match[1]), int(match[2])


def sample(log):
    """What a log says instead: its first line of coverage, or its last line."""
    lines = pathlib.Path(log).read_text(errors="replace").splitlines()
    of_coverage = (line for line in lines if "COVERED" in line or "symbolizer" in line)
    return f"it says {next(of_coverage, lines[-1] if lines else '')[:200]!r}"


# Edges of one small function, which a run of 20 s may reach or not: a folder of 155 edges had 28 and 16.
CHANCE = 16


def below(floor, sums):
    """Folders of the file that have reached less, as text."""
    for line in pathlib.Path(floor).read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        folder, percent = line.split()
        covered, total = sums.get(folder, (0, 0))[:2]
        if total == 0 or 100 * (covered + CHANCE) < float(percent) * total:
            yield f"{folder}: {covered} of {total} edges, less than {percent} % (floor: {floor})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="by source file")
    parser.add_argument("--floor", metavar="FILE", help="lines of a folder and its least percentage of edges")
    parser.add_argument("logs", nargs="+", metavar="LOG")
    options = parser.parse_args()
    by_file, reached, edges, wrong = options.files, {}, {}, []
    for log in options.logs:
        found = list(functions(log))
        if not any(covered for _, covered, _ in found):
            wrong.append(f"{log}: no coverage of this repository's code (is llvm-symbolizer installed? was it compiled in this folder?); {sample(log)}")
        for function, covered, total in found:
            reached[function] = max(reached.get(function, 0), covered)
            edges[function] = max(edges.get(function, 0), total)
    sums = collections.defaultdict(lambda: [0, 0, 0, 0])
    for function, total in edges.items():
        name = function[0] if by_file else function[0].rpartition("/")[0]
        for key in (name, "total"):
            sums[key][0] += reached[function]
            sums[key][1] += total
            sums[key][2] += reached[function] > 0
            sums[key][3] += 1
    for name in sorted(sums, key=lambda n: (n == "total", n)):
        covered, total, called, all_functions = sums[name]
        print(f"{name:<44} {called:>5} of {all_functions:>5} functions  {covered:>6} of {total:>6} edges"
              f" {100 * covered / total:5.1f} %")
    if options.floor and not by_file:
        wrong += below(options.floor, sums)
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
