"""axe-core, which looks for what keeps readers out of a page: of screens, by keys, of low contrast.

In a checkout, `npm install --no-save axe-core` puts it where it is looked for here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import CHROMIUM, MISSING, Browser

FILE = Path(__file__).parents[1] / "node_modules" / "axe-core" / "axe.min.js"
HERE = CHROMIUM is not None and FILE.exists()
MISSING_HERE = f"{MISSING}, or axe-core is not: see tests/axe.py"
needs_axe = pytest.mark.skipif(not HERE, reason=MISSING_HERE)

FOUND = """axe.run().then((told) => told.violations.flatMap((each) =>
  each.nodes.map((node) => `${each.id}: ${node.target.join(" ")}`)))"""


def shown(browser: Browser, page: Path, width: int, scheme: str) -> None:
    """Open *page* in a window of *width* pixels, in the "light" or the "dark" *scheme*."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.call("Emulation.setEmulatedMedia", features=[feature])
    browser.open(page)


def violations(browser: Browser) -> list[str]:
    """The rules that the page breaks as it is, each with the element that does."""
    browser.evaluate(f"{FILE.read_text('utf-8')}; 0")
    found: list[str] = browser.evaluate(FOUND)
    return found
