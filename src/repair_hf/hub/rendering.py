"""What both cards share: the records that a stage left in its folder, and the templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.repocard_data import CardData
from huggingface_hub.utils import validate_repo_id
from jinja2 import Environment, StrictUndefined

from repair_hf.hub.markdown import code, without_folders
from repair_hf.runtime.own_files import read_json, read_yaml
from repair_hf.runtime.redaction import without_secrets

CITATION = """@misc{liu-repair,
  title  = {RePair: Turning Retrieval Failures into Counterfactual Hard Pairs},
  author = {Liu, Siyi and Zhu, Xiaorong and Du, Enjun and Zuo, Xinyu and Duan, Lisheng and Liang, Haijin and
            Ma, Jin and Pu, Junfu and Zhang, Yongqi},
}"""
STAGE_FILES = ("config.yaml", "summary.json", "versions.json")
PRIVATE = ("here", "output", "platform")  # of `versions.json`: they describe the machine
TAGS = ["repair-hf", "image-text-retrieval", "hard-negatives"]


@dataclass(frozen=True)
class Stage:
    """Options, summary and versions of a stage; empty where its folder has no such file."""

    folder: Path
    options: dict[str, Any]
    summary: dict[str, Any]
    versions: dict[str, Any]

    @classmethod
    def of(cls, folder: str | Path) -> Stage:
        folder = Path(folder)
        config, summary, versions = (folder / name for name in STAGE_FILES)
        return cls(
            folder,
            read_yaml(config) if config.is_file() else {},
            read_json(summary) if summary.is_file() else {},
            read_json(versions) if versions.is_file() else {},
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

    def files(self) -> dict[str, bytes]:
        """Config, summary and versions for a repository, without the machine's folders, addresses and keys."""
        options = {name: value for name, value in self.options.items() if not name.endswith("_base_url")}
        versions = {name: value for name, value in self.versions.items() if name not in PRIVATE}
        texts = {
            "config.yaml": yaml.safe_dump(without_folders(options), sort_keys=False, allow_unicode=True),
            "summary.json": json.dumps(without_folders(self.summary), indent=2),
            "versions.json": json.dumps(without_folders(versions), indent=2),
        }
        parts = zip(texts.items(), (options, self.summary, versions), strict=True)
        return {name: without_secrets(text).encode() for (name, text), content in parts if content}


def template(name: str) -> str:
    """Read a template: `dataset_card` or `model_card`."""
    return (files("repair_hf.hub_cards") / f"{name}.md").read_text(encoding="utf-8")


def render(name: str, card_data: CardData, values: Mapping[str, Any]) -> str:
    """Fill a template of a card, and hide anything that looks like a key; a missing value is an error.

    Values are Markdown: put untrusted text through `code` first.
    """
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return without_secrets(
        environment.from_string(template(name)).render(card_data=card_data.to_yaml(), citation=CITATION, **values)
    )
