#!/usr/bin/env python3
"""What failed in a run of tools/dev test, with the end of its output: failures.py FOLDER_OF_RESULTS [LINES]."""
import pathlib
import sys
import xml.etree.ElementTree as xml

folder, lines = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15
for file in sorted(folder.glob("*.xml")):
    try:
        cases = list(xml.parse(file).iter("testcase"))
    except xml.ParseError as error:  # a test's output may hold bytes that are no XML
        print(f"-- {file.stem}: {file} cannot be read: {error}")
        continue
    for case in cases:
        if case.get("status") == "fail":
            print(f"-- failed in {file.stem}: {case.get('name')}")
            print("\n".join((case.findtext("system-out") or "").strip().splitlines()[-lines:]))
for file in sorted(folder.glob("*.txt")):
    for line in file.read_text().splitlines():
        if line.startswith("failed "):
            print(f"-- failed in {file.stem}: {line.removeprefix('failed ')}")
