"""The C interface from C99, with the warnings of a careful user."""
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent


def test_a_c99_program(start_server, tmp_path):
    library = pathlib.Path(os.environ["LONGHAUL_LIBRARY"])
    program = tmp_path / "push_pull"
    subprocess.run([os.environ.get("CC", "cc"), "-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I",
                    str(HERE.parent.parent / "include"), str(HERE / "push_pull.c"), str(library), "-o", str(program),
                    "-Wl,-rpath,%s" % library.parent], check=True)
    done = subprocess.run([str(program), start_server().address], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
