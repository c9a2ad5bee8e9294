"""What Sphinx and its theme leave out for readers by keys or of screens, put into each page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MENDED = {
    # What scrolls must be reached by keys.
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
    # A heading says of which level it is.
    'class="caption" role="heading">': 'class="caption" role="heading" aria-level="2">',
    # Of two landmarks with one role, one needs a name.
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="pages">',
}


def mend(app: Any, exception: Exception | None) -> None:
    """Put it into the pages that Sphinx wrote; twice is as good as once."""
    if exception is None:
        static = Path(app.outdir, "_static")  # npusim's own pages, which need none of it
        for path in set(Path(app.outdir).rglob("*.html")) - set(static.glob("*.html")):
            text = path.read_text(encoding="utf-8")
            for found, better in MENDED.items():
                text = text.replace(found, better)
            path.write_text(text, encoding="utf-8")
