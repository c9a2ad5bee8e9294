"""The directive `examples`: each script of `examples/`, what it prints and what it draws.

A script for a card is quoted, not run: it needs PyTorch, which the site does not, and the launcher.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

SCRIPTS = Path(__file__).parent.parent.parent / "examples"


class Examples(SphinxDirective):
    """A section a script. They run when the page is read, each in a new, empty folder."""

    def run(self) -> list[nodes.Node]:
        """Show them all; one that fails fails the build."""
        drawn = Path(tempfile.mkdtemp(prefix="npusim-gallery-"))
        return [
            self._section(script, drawn / script.stem) for script in sorted(SCRIPTS.glob("*.py"))
        ]

    def _section(self, script: Path, folder: Path) -> nodes.section:
        section = nodes.section(ids=[script.stem.replace("_", "-")], names=[script.stem])
        section += nodes.title("", script.name)
        for paragraph in _docstring(script).split("\n\n"):
            text = nodes.literal_block if paragraph.startswith("    ") else nodes.paragraph
            section += text("", paragraph.strip())
        if "import torch_npu" in script.read_text(encoding="utf-8").splitlines():
            return section
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, str(script)], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise self.error(f"{script.name} exits with {done.returncode}:\n{done.stderr}")
        for picture in sorted(folder.rglob("*.png")):
            where = os.path.relpath(picture, Path(self.env.doc2path(self.env.docname)).parent)
            section += nodes.image(uri=where, alt=f"What {script.name} draws")
        section += nodes.literal_block("", done.stdout, language="text")
        return section


def _docstring(script: Path) -> str:
    text = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
    assert text is not None, f"{script} says what it shows"
    return text
