#!/usr/bin/env python3
"""Every header compiles alone, and twice: it includes what it uses and is guarded.

    headers.py [--expect-failure NAME] [--precompile] --cache FOLDER ROOT SUBFOLDER -- COMPILER FLAGS...

--precompile compiles once what many headers include from outside of the project, and gives it to each: half of the time. One of
those that a header lacks is then not noticed; the headers that users include go without. More of them take longer to read than
they save (all: 2.7 s a header).
Results are cached in FOLDER by the dependencies that the compiler reports, so a second run is quick.
"""
import collections
import concurrent.futures
import fcntl
import hashlib
import os
import pathlib
import re
import subprocess
import sys

ROOMS = ["base", "proto", "codec", "offload", "transport", "wan", "health", "server", "worker", "pslite", "operator", "cli"]
COMMON = 5  # headers that include it


def dependencies(dep_file):
    text = dep_file.read_text(encoding="utf-8").replace("\\\n", " ")
    return [pathlib.Path(name) for name in text.partition(":")[2].split() if name not in ("-", "<stdin>")]


def fresh(dep_file):
    """The last good compilation is newer than all that went into it."""
    try:
        stamp = dep_file.stat().st_mtime_ns
        return all(file.stat().st_mtime_ns < stamp for file in dependencies(dep_file))
    except OSError:
        return False


def compile_alone(header, root, cache, command):
    key = hashlib.sha256(("\0".join(command) + "\0" + str(header)).encode()).hexdigest()[:24]
    dep_file = cache / (key + ".d")
    if fresh(dep_file):
        return None
    name = header.relative_to(root).as_posix()
    source = '#include "%s"\n#include "%s"\n' % (name, name)
    new = cache / (key + ".new")
    arguments = command + ["-fsyntax-only", "-MMD", "-MT", "x", "-MF", str(new), "-I", str(root), "-x", "c++", "-"]
    result = subprocess.run(arguments, input=source, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        new.replace(dep_file)
        return None
    return "%s does not compile alone:\n%s" % (name, result.stderr)


def precompiled(root, cache, command):
    """The command with what is common, which one process compiles for all."""
    count = collections.Counter(line for room in ROOMS for file in (root / room).rglob("*.h") for line in
                                set(re.findall(r"^#include <[a-z_]+>$", file.read_text(encoding="utf-8"), re.M)))
    common = "\n".join(sorted(line for line, times in count.items() if times >= COMMON))
    common += '\n#include "proto/control.pb.h"\n'
    header, dep_file = cache / "common.h", cache / "common.d"
    with open(cache / "common.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not header.exists() or header.read_text(encoding="utf-8") != common or not fresh(dep_file):
            header.write_text(common, encoding="utf-8")
            subprocess.run(command + ["-MD", "-MT", "x", "-MF", str(dep_file), "-x", "c++-header", str(header), "-o",
                                      str(header) + ".gch"], check=True)
            os.utime(dep_file)
    return command + ["-Winvalid-pch", "-include", str(header)]


def main(arguments):
    expect = None
    if arguments[:1] == ["--expect-failure"]:
        expect, arguments = arguments[1], arguments[2:]
    precompile = arguments[:1] == ["--precompile"]
    arguments = arguments[precompile:]
    split = arguments.index("--")
    _, cache, root, folder = arguments[:split]
    command = [flag for flag in arguments[split + 1:] if flag]
    root, cache = pathlib.Path(root).resolve(), pathlib.Path(cache)
    cache.mkdir(parents=True, exist_ok=True)
    headers = [h for h in sorted((root / folder).rglob("*.h")) if "tests/guards/samples" not in str(h.relative_to(root))]
    if precompile:
        command = precompiled(root, cache, command)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        failures = [f for f in pool.map(lambda h: compile_alone(h, root, cache, command), headers) if f]
    print("\n".join(failures))
    print("%s: %d headers, %d failures" % (folder, len(headers), len(failures)))
    if expect is not None:
        return 0 if len(failures) == 1 and failures[0].startswith(expect) else 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
