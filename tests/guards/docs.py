#!/usr/bin/env python3
"""What the pages point to exists, and the glossary defines every word once.

    docs.py ROOT          names every link and path in a page that leads nowhere, and every word defined twice
    docs.py --self-test   shows that the guard can fail
"""
import collections
import pathlib
import re
import sys
import tempfile

FOLDERS = r"(?:base|bench|cli|cmake|codec|deploy|docs|examples|health|include|offload|operator|proto|server|tests|tools|transport|wan|worker)"
PATH = re.compile(r"`(" + FOLDERS + r"/[\w./-]+)`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
WORD = re.compile(r"^\| \*\*([^*]+)\*\*", re.M)


def exists(root, path):
    """A file, a folder, the stem of files (`codec/policy/priority`) or the number of a decision; a * stands for anything."""
    path = path.rstrip("./")
    return (root / path).exists() or any(root.glob(path + ".*")) or any(root.glob(path + "-*")) or ("*" in path and any(root.glob(path)))


def check(root):
    found = []
    pages = [p for p in sorted(root.rglob("*.md")) if not p.relative_to(root).as_posix().startswith(("build", "."))]
    for page in pages:
        where = page.relative_to(root).as_posix()
        text = page.read_text(encoding="utf-8")
        # History and records name what was there at their time.
        if not where.startswith(("docs/decisions/", "CHANGELOG", "docs/changes/")):
            found += ["%s: no such file: %s" % (where, path) for path in PATH.findall(text) if not exists(root, path)]
        found += ["%s: a link to nothing: %s" % (where, link) for link in LINK.findall(text)
                  if not (page.parent / link).exists()]
        if page.name == "glossary.md":
            found += ["%s: %s is defined %d times" % (where, word, times)
                      for word, times in collections.Counter(WORD.findall(text)).items() if times > 1]
    return len(pages), found


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "docs").mkdir()
        (root / "docs/fine.md").write_text("[a](fine.md#b) `docs/fine` `docs/` [web](https://example.org)")
        (root / "docs/bad.md").write_text("[a](none.md) and `docs/none.md`")
        (root / "docs/glossary.md").write_text("| **a** | x |\n| **b** | y |\n| **a** | z |\n")
        count, found = check(root)
    expected = ["docs/bad.md: no such file: docs/none.md", "docs/bad.md: a link to nothing: none.md",
                "docs/glossary.md: a is defined 2 times"]
    print("self-test %s: %d pages, %s" % ("passed" if found == expected else "FAILED", count, found))
    return 0 if found == expected else 1


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    count, found = check(pathlib.Path(arguments[0]).resolve())
    print("\n".join(found))
    print("%d pages, %d problems" % (count, len(found)))
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
