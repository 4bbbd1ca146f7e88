"""Make README.md fit for the package index: its relative links would be broken there.

`[project.urls]` of pyproject.toml is the one place that names the repository. With `Repository` there, relative links
become absolute. Without it, a link becomes its text, and a picture is left out.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def description(readme: str, repository: str | None) -> str:
    """Return a README whose links work anywhere."""

    def absolute(link: re.Match) -> str:
        mark, text, target = link.groups()
        if repository is None:
            return "" if mark else text
        return f"{mark}[{text}]({repository.rstrip('/')}/{'raw' if mark else 'blob'}/main/{target})"

    return RELATIVE.sub(absolute, readme)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=description(
            (HERE / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Repository")
        ),
        long_description_content_type="text/markdown",
    )
