"""The headers of a user's checkout of asc-devkit for the layers above the basic API.

They include the basic layer by relative paths. So a folder with the structure of the checkout has
links to them, and its headers of the basic layer include npusim's header. No header of the checkout
is copied.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from npusim.ascendc.errors import CompileError

__all__ = ["folders"]

LAYERS = ("include/adv_api", "impl/adv_api", "include/utils", "impl/utils")
"""The folders that are taken from the checkout."""
BASIC = ("include/basic_api", "impl/basic_api")
"""The folders whose headers npusim's header replaces."""
LINKS = {**{name: name for name in LAYERS}, "include/lib": "include/adv_api"}
"""npusim's folder -> that of the checkout; kernels include it as lib, its installed name."""
SEARCHED = ("include", "include/adv_api", "include/utils", "impl", "impl/utils", ".")
FORWARDING = '#pragma once\n#include "kernel_operator.h"\n'


def folders(checkout: Path, cache: Path) -> tuple[Path, ...]:
    """The include folders for the headers of *checkout*, by way of a folder in *cache*.

    Raises CompileError.
    """
    root = checkout.resolve()
    if not (root / LAYERS[0]).is_dir():
        raise CompileError(
            f"ascendc: --adv-api must name a checkout of asc-devkit, which has {LAYERS[0]}, not "
            f"{checkout}; name its root"
        )
    basic = [file for each in BASIC for file in sorted((root / each).rglob("*.h"))]
    links = {
        Path(own, file.relative_to(root / theirs)): file
        for own, theirs in LINKS.items()
        for file in sorted((root / theirs).rglob("*.h"))
    }
    listed = "\n".join(map(str, (root, *links, *basic)))
    made = cache / f"adv-api-{hashlib.sha256(listed.encode()).hexdigest()[:32]}"
    if not made.is_dir():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            tree = Path(scratch) / "tree"
            for own, file in links.items():
                place = tree / own
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(file)
            for file in basic:
                place = tree / file.relative_to(root)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(FORWARDING)
            try:
                tree.rename(made)
            except OSError:  # another process created it first
                assert made.is_dir()
    return tuple(made / each for each in SEARCHED)
