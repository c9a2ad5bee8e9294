"""Capabilities of the Python that runs npusim."""

from __future__ import annotations

import sys

__all__ = ["HAS_THREADS"]

HAS_THREADS = sys.platform not in ("emscripten", "wasi")
"""Whether threads and processes can be started: not in a browser, where Pyodide runs npusim
(https://pyodide.org/en/stable/usage/wasm-constraints.html)."""
