"""Configuration of Sphinx: `make docs`."""

import re
import runpy
from pathlib import Path

project = "repair_hf"
copyright = "the authors of repair_hf"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "repair_hf"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
myst_heading_anchors = 3
myst_url_schemes = ["http", "https"]
suppress_warnings = ["misc.highlighting_failure"]  # placeholders such as <command> in a block


def setup(app):
    """Mark flags such as `--max-usd` and intervals such as `[+0.2, +3.0]`, so that no line ends within one."""
    runpy.run_path(str(Path(__file__).with_name("reference.py")))["main"]()  # the pages that come from the code
    app.connect("html-page-context", _mark_wholes)


def _mark_wholes(app, page, template, context, tree):
    whole = r"((?<![\w-])--[a-z][\w-]*|\[[+-]\d[\d.]*, [+-]\d[\d.]*\](?: \*)?)"
    parts = re.split(r"(<[^>]*>)", context.get("body", ""))  # texts and tags in turn
    parts[::2] = [re.sub(whole, r'<span class="whole">\1</span>', text) for text in parts[::2]]
    context["body"] = "".join(parts)
