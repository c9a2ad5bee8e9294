"""What the Python that runs npusim can do."""

from __future__ import annotations

import sys

__all__ = ["HAS_THREADS"]

HAS_THREADS = sys.platform not in ("emscripten", "wasi")
"""Whether threads and processes can start: not in a browser, where Pyodide runs npusim
(https://pyodide.org/en/stable/usage/wasm-constraints.html)."""
