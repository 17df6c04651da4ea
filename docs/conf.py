"""Sphinx configuration: `make docs` builds the site into docs/_build/html, with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import command_line_page  # noqa: E402
import gallery_pages  # noqa: E402
from docutils import nodes  # noqa: E402

import dpmd_fast  # noqa: E402

project = "dpmd_fast"
author = "The dpmd_fast contributors"
version = release = dpmd_fast.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
]
exclude_patterns = ["_build", "figures"]  # docs/figures holds templates

myst_heading_anchors = 3
default_role = "py:obj"
autosummary_generate = True
templates_path = ["_templates"]
highlight_language = "text"  # of blocks that name none: diagrams
autodoc_typehints = "none"  # the docstrings say it
numpydoc_show_class_members = False  # the template lists them

html_theme = "pydata_sphinx_theme"
html_title = "dpmd_fast"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sourcelink = False
html_copy_source = False
# pages without subpages need no navigation beside them
html_sidebars = {name: [] for name in ("start", "glossary", "CHANGELOG", "CONTRIBUTING")}
html_theme_options = {
    "navbar_align": "left",
    "github_url": "https://github.com/dpmd-fast/dpmd-fast",
    "header_links_before_dropdown": 8,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}


def without_blank_ends(app, doctree):
    """Cut the blank line that ends a doctest in Markdown, which the site would show as an empty line."""
    for block in doctree.findall(nodes.literal_block):
        if all(isinstance(part, nodes.Text) for part in block):  # not where a part is a link
            block.rawsource = block.astext().rstrip("\n")
            block[:] = [nodes.Text(block.rawsource)]


def setup(app):
    app.connect("doctree-read", without_blank_ends)
    app.connect("builder-inited", lambda app: gallery_pages.write(HERE))
    app.connect("builder-inited", lambda app: command_line_page.write(HERE))
