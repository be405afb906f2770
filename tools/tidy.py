#!/usr/bin/env python3
"""clang-tidy over all product sources of a configured build: tools/tidy.py BUILD_DIR [FILE_PATTERN].

Reads BUILD_DIR/compile_commands.json; in a unity build several sources are read at once, as they are compiled. What
was clean is not read again until one of the files that go into it, or .clang-tidy, changes (BUILD_DIR/tidy).
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = r"(base|proto|codec|transport|offload|server|worker|operator|health|wan|cli|bench/load)/"


def is_product(entry, build):
    """A source of a product room, or a unity file of a product target; not protobuf's own output."""
    file = pathlib.Path(entry["file"])
    for root in (build, ROOT):
        if file.is_relative_to(root):
            return re.match(ROOMS, file.relative_to(root).as_posix()) is not None and ".pb." not in file.name
    return False


def inputs(entry):
    """All files of ours that go into the compilation."""
    command = re.sub(r"^\S*ccache ", "", entry["command"])
    command = re.sub(r" -o \S+", "", command).replace(" -c ", " -MM ")
    text = subprocess.run(command, shell=True, cwd=entry["directory"], check=True, capture_output=True, text=True).stdout
    names = text.replace("\\\n", " ").partition(":")[2].split()
    return sorted({str((pathlib.Path(entry["directory"]) / name).resolve()) for name in names})


def state_of(files):
    digest = hashlib.sha256()
    for file in files + [str(ROOT / ".clang-tidy")]:
        digest.update(file.encode() + pathlib.Path(file).read_bytes())
    return digest.hexdigest()


def check(entry, build, stamps):
    stamp = stamps / hashlib.sha256(entry["file"].encode()).hexdigest()[:24]
    state = state_of(inputs(entry))
    if stamp.exists() and stamp.read_text() == state:
        return entry["file"], 0, ""
    result = subprocess.run(["clang-tidy", "--quiet", "-p", str(build), entry["file"]], capture_output=True, text=True,
                            check=False)
    if result.returncode == 0 and "warning:" not in result.stdout:
        stamp.write_text(state)
        return entry["file"], 0, ""
    return entry["file"], 1, result.stdout + re.sub(r"\d+ warnings? generated\.\n", "", result.stderr)


def main(arguments):
    build = pathlib.Path(arguments[0]).resolve()
    stamps = build / "tidy"
    stamps.mkdir(exist_ok=True)
    pattern = re.compile(arguments[1] if len(arguments) > 1 else "")
    entries = {entry["file"]: entry for entry in json.loads((build / "compile_commands.json").read_text())
               if is_product(entry, build) and pattern.search(entry["file"])}
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for _, code, text in pool.map(lambda entry: check(entry, build, stamps), entries.values()):
            failed += code
            if code:
                print(text, flush=True)
    print("clang-tidy: %d compilations, %d with findings" % (len(entries), failed))
    return 1 if failed or not entries else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
