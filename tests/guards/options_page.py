#!/usr/bin/env python3
"""docs/reference/options.md has the options that the programs have.

    options_page.py PAGE PROGRAM...          compares
    options_page.py --write PAGE PROGRAM...  writes it anew
"""
import difflib
import pathlib
import subprocess
import sys

HEAD = """# Options

Made from the programs' own tables by `tests/guards/options_page.py --write`; a test fails when they differ. Numbers
may have a unit where one fits (`1gb`, `200mbit`, `25ms`, `2%`). The daemons read any of their options from a file, too
(`--config FILE`, `NAME = VALUE` a line), and `longhaul-worker` and
`longhaul-trainer` from the environment (`LONGHAUL_NAME`).

"""


def main(arguments):
    write = arguments[:1] == ["--write"]
    page, *programs = arguments[1:] if write else arguments
    page = pathlib.Path(page)
    text = HEAD
    for program in programs:
        text += subprocess.run([program, "--help-markdown"], check=True, capture_output=True, text=True).stdout
    text = text.rstrip() + "\n"
    if write:
        page.write_text(text, encoding="utf-8")
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    diff = list(difflib.unified_diff(old.splitlines(), text.splitlines(), str(page), "the programs", lineterm=""))
    print("\n".join(diff[:60]))
    return 1 if diff else 0


sys.exit(main(sys.argv[1:]))
