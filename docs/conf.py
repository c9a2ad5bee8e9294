"""The site of npusim's documents, for Sphinx:

    pip install '.[docs]' && sphinx-build -W docs out/site

Its pages are the Markdown files of this folder as they stand. The Python interface comes from
docstrings, the pictures of the gallery are drawn by the examples while the site is built, and each
page of the course is there as a notebook too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "site"))

import landing
import languages
import notebooks
import operators
import reach
import try_page
import words

import examples  # of docs/site, as the seven above

project = "npusim"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["pictures", "site"]
html_theme = "furo"
html_title = "npusim"
html_copy_source = False
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_show_copyright = False
myst_heading_anchors = 3

# Docstrings are plain English, with names in single backticks.
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"


def setup(app: Any) -> None:
    """List the operators, run the examples, make notebooks, the page of a run and the page that
    runs npusim in a browser; name languages, split words for search and mend pages."""
    words.add(app)
    app.add_directive("examples", examples.Examples)
    app.connect("source-read", notebooks.offer)
    app.connect("source-read", operators.write)
    app.connect("html-page-context", languages.name)
    app.connect("build-finished", notebooks.write)
    app.connect("build-finished", landing.write)
    app.connect("source-read", try_page.fill)
    app.connect("build-finished", try_page.write)
    app.connect("build-finished", reach.mend)
