#!/usr/bin/env python3
"""No product file compares an enumeration of include/longhaul/job.h as a string: text is parsed once.

    enumerations.py ROOT        names every comparison with one of the names
    enumerations.py --self-test shows that the guard can fail
"""
import pathlib
import re
import sys

PRODUCT = ("include", "base", "proto", "codec", "transport", "health", "server", "worker", "wan", "operator", "cli", "bench/load")
TABLE = re.compile(r"kNamesOf<\w+> = \{(.*?)\};", re.S)


def names_of(header):
    names = {name for table in TABLE.findall(header) for name in re.findall(r'"([^"]+)"', table)}
    if len(names) < 10:
        sys.exit("no names found in include/longhaul/job.h: has kNamesOf moved?")
    return names


def comparisons(text, names):
    word = "|".join(sorted(map(re.escape, names)))
    pattern = re.compile(r'[=!]= *"(%s)"|"(%s)" *[=!]=' % (word, word))
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def check(root):
    names = names_of((root / "include/longhaul/job.h").read_text(encoding="utf-8"))
    found = []
    for folder in PRODUCT:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix not in (".h", ".cc"):
                continue
            for number, line in comparisons(file.read_text(encoding="utf-8"), names):
                found.append("%s:%d: %s" % (file.relative_to(root), number, line))
    return found


def self_test():
    names = names_of('kNamesOf<A> = {"lossy", "topk", "shift", "a", "b", "c", "d", "e", "f", "g"};')
    bad = ['if (downlink == "lossy") {', 'return policy != "shift";', 'if ("topk" == priority)']
    good = ['spec.downlink == Downlink::kLossy', 'name == "lossy_downlink"', '{"policy", "shift"}']
    return all(comparisons(line, names) for line in bad) and not any(comparisons(line, names) for line in good)


if sys.argv[1:] == ["--self-test"]:
    sys.exit(0 if self_test() else "the guard lets a comparison through, or refuses what is none")
hits = check(pathlib.Path(sys.argv[1]))
print("\n".join(hits))
print("%d comparisons of enumerations as strings" % len(hits))
sys.exit(1 if hits else 0)
