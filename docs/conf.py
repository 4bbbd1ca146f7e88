"""Configuration of Sphinx: `make docs`."""

import re

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
    """Mark flags such as `--max-usd`, so that no line ends within one."""
    app.connect("html-page-context", _mark_flags)


def _mark_flags(app, page, template, context, tree):
    flag = r"(?<![\w-])(--[a-z][\w-]*)"
    parts = re.split(r"(<[^>]*>)", context.get("body", ""))  # texts and tags in turn
    parts[::2] = [re.sub(flag, r'<span class="flag">\1</span>', text) for text in parts[::2]]
    context["body"] = "".join(parts)
