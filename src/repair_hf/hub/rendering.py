"""What both cards share: the records that a stage left in its folder, and the templates."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard_data import CardData
from huggingface_hub.utils import validate_repo_id
from jinja2 import Environment, StrictUndefined

from repair_hf.hub.markdown import code, fenced, table, without_folders
from repair_hf.runtime.options import default_of, neutral_names
from repair_hf.runtime.own_files import read_json, read_yaml
from repair_hf.runtime.redaction import without_secrets

CITATION = """@misc{liu-repair,
  title  = {RePair: Turning Retrieval Failures into Counterfactual Hard Pairs},
  author = {Liu, Siyi and Zhu, Xiaorong and Du, Enjun and Zuo, Xinyu and Duan, Lisheng and Liang, Haijin and
            Ma, Jin and Pu, Junfu and Zhang, Yongqi},
}"""
TAGS = ["repair-hf", "image-text-retrieval", "hard-negatives"]


@dataclass(frozen=True)
class Stage:
    """Options, summary, versions and command of a stage; empty where its folder has no such file."""

    folder: Path
    options: dict[str, Any]
    summary: dict[str, Any]
    versions: dict[str, Any]
    command: str

    @classmethod
    def of(cls, folder: str | Path) -> Stage:
        folder = Path(folder)
        config, summary, versions, command = (
            folder / name for name in ("config.yaml", "summary.json", "versions.json", "command.txt")
        )
        return cls(
            folder,
            read_yaml(config) if config.is_file() else {},
            read_json(summary) if summary.is_file() else {},
            read_json(versions) if versions.is_file() else {},
            command.read_text(encoding="utf-8").strip() if command.is_file() else "",
        )

    def hub_ids(self, option: str) -> list[str]:
        """The values of an option that are Hub ids, not paths on the machine of the stage."""
        return [value for value in self._values(option) if self._is_on_hub(value)]

    def name_of(self, option: str) -> str:
        """The values of an option in Markdown: Hub ids are linked, paths lose their folders."""
        kind = "" if option == "model" else "datasets/"
        link = "[{}](https://huggingface.co/" + kind + "{})"
        names = [
            link.format(code(value), value) if self._is_on_hub(value) else code(without_folders(value))
            for value in self._values(option)
        ]
        return ", ".join(names) or "unknown"

    def pairs(self) -> str:
        """The pairs in Markdown, with their split and fingerprint."""
        name = self.name_of("pairs")
        if "split" not in self.options:
            return name
        return (
            f"{name}, split {code(self.options['split'])}, fingerprint {code(self.options.get('pairs_fingerprint'))}"
        )

    def _values(self, option: str) -> list[str]:
        found = self.options.get(option)
        return [] if found is None else list(map(str, found)) if isinstance(found, list) else [str(found)]

    def _is_on_hub(self, value: str) -> bool:
        was_here = value in self.versions.get("here", ())
        if was_here or value.count("/") != 1 or value.startswith((".", "/", "~", "world/")):
            return False
        try:
            validate_repo_id(value)  # it becomes part of a link
        except HFValidationError:
            return False
        output = str(self.versions.get("output", self.options.get("output", "")))
        is_beside = value.split("/")[0] == output.split("/")[0]  # such as `runs/pairs`, deleted since
        return not is_beside and not Path(value).exists()

    def making(self, kinds: Sequence[type], defaults: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Command, recipe, versions and citation for both templates.

        The recipe holds the options that decide the result and are not at their defaults; `kinds` declare them.
        """
        words = _shown_words(_split(self.command))
        declared = {each.name: default_of(each) for kind in kinds for each in fields(kind)} | dict(defaults or {})
        neutral = set().union(*map(neutral_names, kinds))
        recipe = {
            name: without_folders(value)
            for name, value in self.options.items()
            if name not in neutral
            and not name.endswith(("_digest", "_fingerprint", "_report"))
            and value is not None
            and value != declared.get(name)
        }
        packages = self.versions.get("packages", {})
        own = {"python": self.versions.get("python"), "commit of repair_hf": self.versions.get("commit")}
        versions = {name: code(version) for name, version in (own | packages).items()}
        return {
            "command": fenced(shlex.join(words), "bash") if words else "",
            "recipe": fenced(yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True), "yaml"),
            "versions": two_columns("version", versions) if packages else "",
            "citation": fenced(CITATION, "bibtex"),
        }


def template(name: str) -> str:
    """Read a template: `dataset_card` or `model_card`."""
    return (files("repair_hf.hub_cards") / f"{name}.md").read_text(encoding="utf-8")


def render(name: str, card_data: CardData, values: Mapping[str, Any]) -> str:
    """Fill a template, and hide anything that looks like a key; a missing value is an error.

    Values are Markdown: put untrusted text through `code`, `fenced` or `table` first.
    """
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return without_secrets(environment.from_string(template(name)).render(card_data=card_data.to_yaml(), **values))


def two_columns(head: str, rows: Mapping[str, str]) -> str:
    return table(("", head), rows.items(), labels=2)


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an open quotation mark in a file edited by hand
        return command.split()


def _shown_words(words: list[str]) -> list[str]:
    """Remove folders and server addresses from a command."""
    shown, before = [], ""
    for word in words:
        flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        is_address = (flag if equals else before).replace("_", "-").endswith("-base-url")
        shown.append(f"{flag}{equals}{'…' if is_address and value else without_folders(value)}")
        before = "" if equals else flag
    return shown
