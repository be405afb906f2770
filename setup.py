"""The Python package: python/longhaul with liblonghaul inside, which CMake builds in build/python.

    pip install --no-build-isolation .          needs what tools/dev setup installs, and no network
"""
import os
import pathlib
import re
import shutil
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent
VERSION = re.search(r"project\(longhaul VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
BUILD = ROOT / "build" / "python"


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        # The flags of the release, so that a cache of the compiler has its objects.
        subprocess.run(["cmake", "--preset", "release", "-B", str(BUILD), "-DLONGHAUL_TESTS=OFF", "-DLONGHAUL_BENCH=OFF", "-DLONGHAUL_OPERATOR=OFF",
                        *launcher], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmake", "--build", str(BUILD), "--target", "longhaul_shared"], cwd=ROOT, check=True,
                       env={**os.environ, "CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(ROOT),
                            "CCACHE_SLOPPINESS": "pch_defines,time_macros"})
        shutil.copy(BUILD / "lib" / "liblonghaul.so.0", pathlib.Path(self.build_lib) / "longhaul")


class WheelOfAllPythons(bdist_wheel):
    """For every Python 3: the library knows nothing of Python."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(version=VERSION, packages=["longhaul"], package_dir={"": "python"},
      package_data={"longhaul": ["py.typed", "*.pyi", "*.so.*"]},
      cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfAllPythons})
