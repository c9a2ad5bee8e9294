"""Builds the compiled engine, plain C that ctypes loads: a wheel serves each Python of a platform.

Without a C compiler it is left out. It is left out with NPUSIM_PURE=1, too, for a wheel that serves
every platform.
"""

import os
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = "npusim/timing/compiled"
ENGINE = Extension(
    "npusim.timing.compiled._engine",
    [f"{FOLDER}/{name}.c" for name in ("lane", "l2", "link", "memory", "queue", "run")],
    depends=[f"{FOLDER}/engine.h"],
    extra_compile_args=[
        *("-std=c11", "-O2", "-fvisibility=hidden"),
        "-ffp-contract=off",  # sums of products are rounded twice, as Python does
        f"-ffile-prefix-map={os.getcwd()}=.",  # the same bytes from whichever folder
    ],
    extra_link_args=["-static-libgcc"] if sys.platform == "win32" else [],
    libraries=["m"],
    optional=True,
)


class BuildLibrary(build_ext):
    """Builds a library without an interface to Python, and so without a version of it."""

    def finalize_options(self):
        super().finalize_options()
        if sys.platform == "win32":
            self.compiler = self.compiler or "mingw32"  # MSVC has no integers of 128 bits

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"

    def get_export_symbols(self, ext):
        return ext.export_symbols

    def get_libraries(self, ext):
        return ext.libraries


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of a platform, or of every one if nothing is compiled."""

    def get_tag(self):
        *_, platform = super().get_tag()
        return "py3", "none", platform


setup(
    ext_modules=[] if os.environ.get("NPUSIM_PURE") else [ENGINE],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": PlatformWheel},
)
