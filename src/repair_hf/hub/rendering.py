"""What both cards share: the stage's folder as it told about itself, and the template that is filled.

In:  a folder with `config.yaml`, `command.txt`, `versions.json` and `summary.json`, or without them; a template's name and values.
Out: a card. No key that the environment holds, and nothing that looks like one, is in it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.repocard_data import CardData
from jinja2 import Environment, StrictUndefined

from repair_hf.hub.markdown import code, fenced, table, without_folders
from repair_hf.runtime.options import PairsOptions
from repair_hf.runtime.run_folder import NOT_PART_OF_THE_RESULT, without_secrets

CITATION = """@misc{liu-repair,
  title  = {RePair: Turning Retrieval Failures into Counterfactual Hard Pairs},
  author = {Liu, Siyi and Zhu, Xiaorong and Du, Enjun and Zuo, Xinyu and Duan, Lisheng and Liang, Haijin and Ma, Jin and Pu, Junfu and Zhang, Yongqi},
}"""
TAGS = ["repair-hf", "image-text-retrieval", "hard-negatives"]


@dataclass(frozen=True)
class Stage:
    """What a stage wrote about itself; empty where it did not."""

    folder: Path
    options: dict[str, Any]
    summary: dict[str, Any]
    versions: dict[str, Any]
    command: str

    @classmethod
    def of(cls, folder: str | Path) -> Stage:
        folder = Path(folder)
        text = {name: _read(folder / name) for name in ("config.yaml", "summary.json", "versions.json", "command.txt")}
        return cls(
            folder,
            yaml.safe_load(text["config.yaml"]) or {},
            json.loads(text["summary.json"] or "{}"),
            json.loads(text["versions.json"] or "{}"),
            text["command.txt"].strip(),
        )

    def hub_ids(self, option: str) -> list[str]:
        """Those of the option's values, of which there may be several, that name something on the Hub and nothing on this machine."""
        return [value for value in self._values(option) if self._is_on_hub(value)]

    def name_of(self, option: str) -> str:
        """The option's values for a reader: linked if they are on the Hub, else without the folders of this machine."""
        kind = "" if option == "model" else "datasets/"
        told = [
            f"[{code(value)}](https://huggingface.co/{kind}{value})"
            if self._is_on_hub(value)
            else code(without_folders(value))
            for value in self._values(option)
        ]
        return ", ".join(told) or "not on record"

    def _values(self, option: str) -> list[str]:
        found = self.options.get(option)
        return [] if found is None else list(map(str, found)) if isinstance(found, list) else [str(found)]

    def _is_on_hub(self, value: str) -> bool:
        was_here = value in self.versions.get("here", ())
        if was_here or value.count("/") != 1 or value.startswith((".", "/", "~", "world/")):
            return False
        is_beside = (
            value.split("/")[0] == str(self.options.get("output", "")).split("/")[0]
        )  # `runs/pairs`, since deleted
        return not is_beside and not Path(value).exists()

    def told(self, defaults: Mapping[str, Any] | None = None) -> dict[str, str]:
        """How it was made, for both templates; options that have their default are left out of the recipe."""
        words = _shown_words(_split(self.command))
        defaults = {field.name: field.default for field in fields(PairsOptions)} | dict(defaults or {})
        recipe = {
            name: without_folders(value)
            for name, value in self.options.items()
            if name not in NOT_PART_OF_THE_RESULT
            and not name.endswith(("_digest", "_fingerprint"))
            and value is not None
            and value != defaults.get(name)
        }
        packages = self.versions.get("packages", {}).items()
        versions = {
            "python": self.versions.get("python"),
            "repair_hf's commit": self.versions.get("commit"),
            **dict(packages),
        }
        return {
            "command": fenced(shlex.join(words), "bash") if words else "",
            "recipe": fenced(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), "yaml"),
            "versions": two_columns("version", {name: code(found) for name, found in versions.items()})
            if packages
            else "",
            "citation": fenced(CITATION, "bibtex"),
        }


def template(name: str) -> str:
    """The text of a template: `dataset_card` or `model_card`."""
    return (files("repair_hf.hub_cards") / f"{name}.md").read_text(encoding="utf-8")


def render(name: str, card_data: CardData, values: Mapping[str, Any]) -> str:
    """Fill a template; a value that it asks for and does not get is an error.

    Args:
        name: Of the template.
        card_data: The header.
        values: Markdown; what comes from outside has gone through `code`, `fenced` or `table`.
    """
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return without_secrets(environment.from_string(template(name)).render(card_data=card_data.to_yaml(), **values))


def two_columns(head: str, rows: Mapping[str, str]) -> str:
    """Names and what is said of each."""
    return table(("", head), rows.items(), labels=2)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # written by hand, with a quotation mark that is not closed
        return command.split()


def _shown_words(words: list[str]) -> list[str]:
    """A command without folders of this machine, and without the addresses of its servers."""
    shown, before = [], ""
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        is_address = (flag if equals else before).replace("_", "-").endswith("-base-url")
        shown.append(f"{flag}{equals}{'…' if is_address and value else without_folders(value)}")
        before = "" if equals else flag
    return shown
