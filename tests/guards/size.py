#!/usr/bin/env python3
"""How large the house is, and how tangled: figures with limits.

    size.py ROOT          prints every figure; fails where one is above its limit
    size.py --self-test   shows that it can fail
"""
import collections
import pathlib
import re
import sys
import tempfile

# From below to above: an include points down. Product rooms; `bench/load` belongs to the program `longhaul`.
ROOMS = ["include", "base", "proto", "codec", "wan", "transport", "health", "offload", "server", "worker", "pslite", "operator", "bench/load", "cli", "examples"]
# The daemons' mains, and server/program, are programs, as `longhaul` is: they put the parts together.
PROGRAMS = {"server/main.cc", "worker/daemon/main.cc", "wan/main.cc", "worker/offload/main.cc", "operator/main.cc"}

# Figure: (wanted, limit). Where what is wanted is not reached, the limit is what is. A commit that raises one says what for.
LIMITS = {
    "product lines": (40000, 101000),
    "test lines": (43000, 104800),
    "product files under 40 lines": (30, 85),
    "arrows between rooms, %": (60, 67),
    "arrows up": (0, 0),
}
CLASS_LINES = 600  # over all files of a class
LARGER_CLASSES = {}

DEFINITION = re.compile(r"^(?!\s|#|//|using\b|namespace\b|return\b)[^;={}()]*?((?:\w+::)+)~?(?:\w+|operator[^(]+)\(")
CLASS = re.compile(r"^(\s*)(?:template <.*> )?(?:class|struct)(?: \[\[\w+\]\])? ((?:\w+::)*\w+)(?: final)?(?: : [^;{]*)?\s*\{")
INCLUDE = re.compile(r'^#include "([^"]+)"')


def sources(root, *folders):
    for folder in folders:
        for file in sorted((root / folder).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix in (".h", ".cc") and "samples/" not in path:
                yield path, file.read_text(encoding="utf-8").splitlines()


def class_lines(files):
    """(folder, class) -> lines of its body and of its members defined elsewhere in that folder."""
    total = collections.Counter()
    for path, lines in files:
        folder = path.rpartition("/")[0]
        number = 0
        while number < len(lines):
            # A declaration may be wrapped: up to three lines make its head.
            head = " ".join([lines[number]] + [line.strip() for line in lines[number + 1:number + 3]])
            of_class = CLASS.match(head) if lines[number].strip() else None
            member = None if of_class else DEFINITION.match(head)
            if member and (number + 1 < len(lines)) and not lines[number].startswith((" ", "}", ")")):
                end = number
                while end < len(lines) and not lines[end].startswith("}") and not re.search(r"(\}|;|\{\})$", lines[number]):
                    end += 1
                total[folder, member[1][:-2]] += end - number + 1
                number = end + 1
                continue
            if of_class:
                end = number
                while end < len(lines) and not lines[end].startswith(of_class[1] + "}") and not lines[number].rstrip().endswith("};"):
                    end += 1
                total[folder, of_class[2]] += end - number + 1
                number = end + 1
                continue
            number += 1
    return total


def room_of(path):
    if path in PROGRAMS or path.startswith("server/program/"):
        return "cli"
    return next((room for room in ROOMS if path.startswith(room + "/")), None)


def arrows(files):
    found = set()
    for path, lines in files:
        for line in lines:
            match = INCLUDE.match(line)
            if not match:
                continue
            target = "include/x" if match[1].startswith("longhaul/") else match[1]
            pair = room_of(path), room_of(target)
            if pair[1] and pair[0] != pair[1]:
                found.add(pair)
    return found


def check(root):
    product, tests = list(sources(root, *ROOMS)), list(sources(root, "tests"))
    between = arrows(product)
    up = sorted("%s -> %s" % pair for pair in between if ROOMS.index(pair[0]) < ROOMS.index(pair[1]))
    possible = len(ROOMS) * (len(ROOMS) - 1) // 2
    figures = {
        "product lines": sum(len(lines) for _, lines in product),
        "test lines": sum(len(lines) for _, lines in tests),
        "product files under 40 lines": sum(len(lines) < 40 for _, lines in product),
        "arrows between rooms, %": round(100 * len(between) / possible),
        "arrows up": len(up),
    }
    complaints = []
    for name, value in figures.items():
        wanted, limit = LIMITS[name]
        print("%-34s %7d  limit %d, wanted %d" % (name, value, limit, wanted))
        if value > limit:
            complaints.append("%s: %d is above %d" % (name, value, limit))
    for pair in up:
        print("  up: " + pair)
    print("largest classes, over all their files:")
    for (folder, name), lines in class_lines(product).most_common(10):
        limit = LARGER_CLASSES.get("%s %s" % (folder, name), CLASS_LINES)
        print("%7d  limit %4d  %s (%s)" % (lines, limit, name, folder))
        if lines > limit:
            complaints.append("class %s of %s: %d lines are above %d" % (name, folder, lines, limit))
    print("\n".join(complaints))
    return complaints


def self_test():
    """A tree with a class of 700 lines in two files, an arrow up and too many crumbs."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "base").mkdir()
        (root / "server").mkdir()
        (root / "base/giant.h").write_text("class Giant {\n" + "  int x;\n" * 98 + "};\n")
        (root / "base/giant.cc").write_text('#include "server/x.h"\n\nvoid Giant::Grow() {\n' + "  x();\n" * 599 + "}\n")
        for number in range(99):
            (root / ("server/crumb%d.h" % number)).write_text("#pragma once\n")
        complaints = check(root)
    wanted = ["product files under 40", "arrows up: 1", "class Giant of base: 701 lines"]
    return 0 if len(complaints) == 3 and all(c.startswith(w) for c, w in zip(complaints, wanted)) else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if check(pathlib.Path(sys.argv[1]).resolve()) else 0)
