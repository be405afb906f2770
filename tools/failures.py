#!/usr/bin/env python3
"""What failed in a run of tools/dev test, with the end of its output: failures.py FOLDER_OF_RESULTS [LINES]."""
import pathlib
import sys
import xml.etree.ElementTree as xml

folder, lines = pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15
named = set()  # stages with a failed test that is named
for file in sorted(folder.glob("*.xml")):
    try:
        cases = list(xml.parse(file).iter("testcase"))
    except xml.ParseError as error:  # a test's output may hold bytes that are no XML
        print(f"-- {file.stem}: {file} cannot be read: {error}")
        continue
    for case in cases:
        if case.get("status") == "fail":
            named.add(file.stem)
            print(f"-- failed in {file.stem}: {case.get('name')}")
            print("\n".join((case.findtext("system-out") or "").strip().splitlines()[-lines:]))
for file in sorted(folder.glob("*.txt")):
    for line in file.read_text().splitlines():
        if line.startswith("failed "):
            named.add(file.stem)
            print(f"-- failed in {file.stem}: {line.removeprefix('failed ')}")
# Such a stage failed as a whole; where it compiles ahead its last words say why.
for line in (folder / "stages").read_text().splitlines() if (folder / "stages").exists() else ():
    stage, _, failed, _ = line.split()
    if failed != "0" and stage not in named:
        print(f"-- failed: the stage {stage}")
        ahead = folder / f"{stage}.ahead"
        if ahead.exists():
            print("\n".join(ahead.read_text(errors="replace").splitlines()[-lines:]))
