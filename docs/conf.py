"""Configuration of Sphinx: `make docs`."""

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
