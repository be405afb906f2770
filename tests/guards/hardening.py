#!/usr/bin/env python3
"""Whether the programs and libraries carry the hardening that cmake/LonghaulTargets.cmake asks for.

    hardening.py FILE...              programs, shared libraries and archives (.a)
    hardening.py --self-test COMPILER  a program that is built without it is found in all ways

A program or shared library: position independent, read-only relocations bound at the start, no executable stack, stack
protector, FORTIFY and the standard library's assertions in use. Debian's start files carry no CET note, so that no program
does; each of an archive's objects has to. Stack clash: no function, of either, takes more than a page of stack at once, as
each page is touched before the next one is taken.
"""
import pathlib
import platform
import re
import subprocess
import sys
import tempfile


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout


PAGE = 4096


def unprobed_frames(file):
    """How many bytes functions take from the stack in one step, where that is more than a page."""
    code = output("objdump", "-d", "--no-show-raw-insn", file)
    steps = (int(step, 16) for step in re.findall(r"\bsub[lq]? +\$0x([0-9a-f]+),%[re]sp", code))
    return [step for step in steps if PAGE < step < 1 << 31]  # beyond: what is given back


def complaints_of_stack(file):
    frames = unprobed_frames(file)
    return [f"{file} takes {max(frames)} bytes of stack without touching its pages"] if frames else []


def complaints_of_program(file):
    text = output("readelf", "-hldW", file)
    symbols = output("readelf", "--dyn-syms", "-W", file)
    stack = re.search(r"GNU_STACK.*", text)
    found = {
        "is not position independent": "Type:                              DYN" in text,
        "has no read-only relocations": "GNU_RELRO" in text,
        "binds lazily": re.search(r"\(FLAGS\)\s+BIND_NOW", text) is not None,
        "has an executable stack": stack is not None and "E" not in stack[0].split()[6],
        "has no stack protector": "__stack_chk_fail" in symbols,
        "is not fortified": re.search(r"__(?!stack_)\w+_chk\b", symbols) is not None,
        "has no assertions of the standard library": "glibcxx_assert_fail" in symbols,
    }
    return [f"{file} {what}" for what, fine in found.items() if not fine] + \
        (complaints_of_stack(file) if "X86-64" in text else [])


def complaints_of_archive(file):
    if "X86-64" not in (text := output("readelf", "-hnW", file)):
        return []
    objects = re.split(r"^File: ", text, flags=re.MULTILINE)[1:]
    missing = [part.split("\n")[0] for part in objects if "IBT, SHSTK" not in part]
    return [f"{name} is without CET" for name in missing] + ([] if objects else [f"{file} is empty"]) + \
        complaints_of_stack(file)


def check(files):
    wrong = []
    for file in files:
        wrong += complaints_of_archive(file) if file.endswith(".a") else complaints_of_program(file)
    print("\n".join(wrong) or f"{len(files)} files are hardened")
    return wrong


def self_test(compiler):
    """Without any of the flags: no complaint is missing. With the stack's: none of it is left."""
    with tempfile.TemporaryDirectory() as folder:
        source, program, archive = (str(pathlib.Path(folder) / name) for name in ("plain.cc", "plain", "plain.a"))
        large = "volatile char frame[20000]; frame[0] = 0; return frame[0];"
        pathlib.Path(source).write_text(f"int main() {{ {large} }}\n")
        off = ["-fno-stack-protector", "-U_FORTIFY_SOURCE", "-fcf-protection=none", "-fno-stack-clash-protection"]
        output(compiler, *off, "-no-pie", "-Wl,-z,norelro,-z,lazy,-z,execstack", source, "-o", program)
        output(compiler, *off, "-c", source, "-o", program + ".o")
        output("ar", "rc", archive, program + ".o")
        wrong = check([program])
        of_archive = check([archive])
        output(compiler, *off, "-fstack-clash-protection", "-c", source, "-o", program + ".o")
        probed = complaints_of_stack(program + ".o")
    machine = "x86_64" == platform.machine()
    return 0 if len(wrong) == 7 + machine and len(of_archive) == 2 * machine and not probed else 1


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--self-test":
        sys.exit(self_test(sys.argv[2]))
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(1 if check(sys.argv[1:]) else 0)
