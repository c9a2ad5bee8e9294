"""What is built holds what it must, and the links at the root stay links."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import npusim
from npusim import devices

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("part", ["ops", "devices", "reports"])
def test_the_root_shows_the_parts_by_links(part: str) -> None:
    assert (ROOT / part).is_symlink()
    assert (ROOT / part).readlink() == Path("npusim") / part


def test_the_public_names_exist_and_are_sorted() -> None:
    assert npusim.__all__ == sorted(npusim.__all__)
    assert all(hasattr(npusim, name) for name in npusim.__all__)


@pytest.mark.slow
def test_the_wheel_built_from_the_sdist_holds_every_device_file(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", tmp_path, ROOT], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"npusim/devices/{name}.toml" for name in devices.names()} <= set(names)
    assert {"npusim/py.typed", "npusim/ops/npu_quantize/kernel.py"} <= set(names)
    assert {"npusim/validation/silicon.csv", "npusim/reports/page.js"} <= set(names)
    page = {"page.html", "page.css", "page.js", "map.js"}
    assert {f"npusim/reports/layout_page/{name}" for name in page} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"npusim"}


def test_numpy_has_one_thread_in_tests_and_what_they_start() -> None:
    threads = "import numpy, os; numpy.ones((512, 512)) @ numpy.ones((512, 512)); "
    threads += "print(len(os.listdir('/proc/self/task')))"
    ran = subprocess.run([sys.executable, "-c", threads], check=True, capture_output=True)
    assert ran.stdout.split() == [b"1"]
