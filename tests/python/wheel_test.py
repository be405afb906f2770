#!/usr/bin/env python3
"""pip install --no-build-isolation . in a venv without network, then a round with what it has installed.

    wheel_test.py SOURCE PROGRAMS
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

ROUND = """
import sys, time
begun = time.process_time()
import longhaul
assert time.process_time() - begun < 0.5, "the import takes long"
assert longhaul.__file__.startswith(sys.prefix), longhaul.__file__
import numpy
with longhaul.connect(join=sys.argv[1], insecure=True) as client:
    w = client.declare("w", 10, high_share=1)
    assert client.push_pull(w, numpy.ones(10, numpy.float32), numpy.zeros(10, numpy.float32)).result(30).sum() == 10
"""


def main(source, programs):
    os.environ["LONGHAUL_PROGRAMS"] = programs
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    from conftest import Server
    with tempfile.TemporaryDirectory(prefix="longhaul-wheel-") as folder:
        folder = pathlib.Path(folder)
        pip = {**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(folder), source],
                       env=pip, check=True)
        wheel, = folder.glob("*.whl")
        print("%s, %d bytes" % (wheel.name, wheel.stat().st_size))
        if not wheel.name.startswith("longhaul-") or "-py3-none-linux_" not in wheel.name:
            sys.exit("FAILED: not one wheel for all Pythons: " + wheel.name)
        if wheel.stat().st_size > 5e6:
            sys.exit("FAILED: the wheel is larger than 5 MB")
        venv.create(folder / "venv", system_site_packages=True, with_pip=False, symlinks=True)
        subprocess.run([sys.executable, "-m", "pip", "--python", str(folder / "venv/bin/python"), "install", "-q", "--no-deps",
                        str(wheel)], env=pip, check=True)
        server = Server()
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LONGHAUL_LIBRARY")}
        try:
            subprocess.run([str(folder / "venv/bin/python"), "-c", ROUND, server.address], env=environment, cwd=folder, check=True,
                           timeout=60)
        finally:
            server.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
