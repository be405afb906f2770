#!/usr/bin/env python3
"""What fuzzers have reached, from the logs of runs with -print_coverage=1: coverage.py [--files] LOG...

Functions, and edges of the control flow graph, by folder (with --files by source file), of everything that the programs
contain outside of tests. What several fuzzers contain counts as far as the best of them got in each function, so the
numbers are lower bounds of what all of them reached together. Many edges lead to reports of sanitizers and
failed checks, which no input may reach."""
import collections
import re
import sys

FUNCTION = re.compile(r"^(?:UN)?COVERED_FUNC: hits: \d+ edges: (\d+)/(\d+) (.*) (\S+):(\d+)$")


def functions(log):
    with open(log, errors="replace") as lines:
        for line in lines:
            match = FUNCTION.match(line)
            if match is None or "/build/fuzz/../../" not in match[4]:  # not ours: headers of the system
                continue
            path = match[4].split("/build/fuzz/../../")[1]
            if not path.startswith("tests/"):
                yield (path, match[3], match[5]), int(match[1]), int(match[2])


def main():
    by_file = "--files" in sys.argv
    reached, edges = {}, {}
    for log in [word for word in sys.argv[1:] if word != "--files"]:
        for function, covered, total in functions(log):
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


if __name__ == "__main__":
    main()
