"""The README.md of a folder of records or of their exports, from a template."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from repair_hf.runtime.run_folder import write_atomically


def write_card(folder: Path, template: str, **values: Any) -> None:
    """Write the README.md of a folder: for `load_dataset`, the Hub's viewer and readers."""
    write_atomically(folder / "README.md", _templates().get_template(f"{template}.md").render(**values))


@cache
def _templates() -> Environment:
    loader = PackageLoader("repair_hf.records")
    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return Environment(loader=loader, undefined=StrictUndefined, **blocks)
