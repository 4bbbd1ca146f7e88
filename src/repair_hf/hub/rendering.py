"""What both cards share: what a stage left in its folder, Markdown from untrusted values, and the templates.

Inside a code span, renderers of Markdown interpret nothing: no tag, no emphasis, no address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml
from huggingface_hub import CardData
from jinja2 import Environment, StrictUndefined

from repair_hf.analysis.tables import NONE
from repair_hf.pairs.admission import file_within, own_folders
from repair_hf.runtime.files import read_json, read_yaml, shipped
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import printable, without_secrets

CITATION = """@misc{liu-repair,
  title  = {RePair: Turning Retrieval Failures into Counterfactual Hard Pairs},
  author = {Liu, Siyi and Zhu, Xiaorong and Du, Enjun and Zuo, Xinyu and Duan, Lisheng and Liang, Haijin and
            Ma, Jin and Pu, Junfu and Zhang, Yongqi},
}"""
STAGE_FILES = ("config.yaml", "summary.json", "versions.json")
PRIVATE = ("here", "output", "platform")  # of `versions.json`: they describe the machine
TAGS = ["repair-hf", "image-text-retrieval", "hard-negatives"]
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # nothing in it ends a link


@dataclass(frozen=True)
class StageFolder:
    """Options, summary and versions of a stage; empty where its folder has no such file."""

    folder: Path
    options: dict[str, Any]
    summary: dict[str, Any]
    versions: dict[str, Any]

    @classmethod
    def of(cls, folder: str | Path) -> StageFolder:
        folder = Path(folder)
        readers = zip(STAGE_FILES, (read_yaml, read_json, read_json), strict=True)
        return cls(
            folder, *(read(own_file(folder, name)) if (folder / name).is_file() else {} for name, read in readers)
        )

    def hub_ids(self, option: str) -> list[str]:
        """Return the values of an option that are Hub ids, not paths on the machine of the stage."""
        return [value for value in self._values(option) if self._is_on_hub(value)]

    def name_of(self, option: str) -> str:
        """Return the values of an option in Markdown: Hub ids are linked, paths lose their folders."""
        kind = "" if option == "model" else "datasets/"
        names = [
            f"[{code(value)}](https://huggingface.co/{kind}{value})"
            if self._is_on_hub(value)
            else code(without_folders(value))
            for value in self._values(option)
        ]
        return ", ".join(names) or "unknown"

    def pairs(self) -> str:
        """Return the pairs in Markdown, with their split and fingerprint."""
        more = {"split": self.options.get("split"), "fingerprint": self.options.get("pairs_fingerprint")}
        return ", ".join([self.name_of("pairs"), *(f"{name} {code(value)}" for name, value in more.items() if value)])

    def files(self) -> dict[str, bytes]:
        """Return config, summary and versions for a repository, without the machine's folders, addresses and keys."""
        options = {name: value for name, value in self.options.items() if not name.endswith("_base_url")}
        versions = {name: value for name, value in self.versions.items() if name not in PRIVATE}
        parts = dict(zip(STAGE_FILES, map(without_folders, (options, self.summary, versions)), strict=True))
        texts = {name: json.dumps(part, indent=2) for name, part in parts.items() if part}
        if options:
            texts["config.yaml"] = yaml.safe_dump(parts["config.yaml"], sort_keys=False, allow_unicode=True)
        return {name: without_secrets(text).encode() for name, text in texts.items()}

    def _values(self, option: str) -> list[str]:
        found = self.options.get(option)
        return [] if found is None else list(map(str, found)) if isinstance(found, list) else [str(found)]

    def _is_on_hub(self, value: str) -> bool:
        """Whether a value has the form of a Hub id, and was no path where the stage ran."""
        was_local = value in self.versions.get("here", [value]) or value.startswith("world/")
        return not was_local and HUB_ID.fullmatch(value) is not None and not Path(value).exists()


def own_file(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder that is pushed.

    Raises:
        UserError: If it is a link that leads out of the folder: a stranger may have put it there.
    """
    try:
        return file_within(name, own_folders(folder))
    except OSError as error:
        raise UserError(f"{folder / name} cannot be pushed: {error}.") from error


def template(name: str) -> str:
    """Read a template: `dataset_card` or `model_card`."""
    return (shipped("hub_cards") / f"{name}.md").read_text(encoding="utf-8")


def render(name: str, card_data: CardData, values: Mapping[str, Any]) -> str:
    """Fill a template of a card, and hide anything that looks like a key; a missing value is an error.

    Values are Markdown: put untrusted text through `code` first.
    """
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    filled = environment.from_string(template(name)).render(card_data=card_data.to_yaml(), citation=CITATION, **values)
    return without_secrets(filled)


def code(text: Any) -> str:
    """Return `text` as a code span on one line; a dash if it is None or empty."""
    line = printable(" ".join(str(text).split())) if text is not None else ""
    if not line:
        return NONE
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def without_folders(value: Any) -> Any:
    """Shorten absolute paths, also in lists and dicts, to their last part: folders of a machine are private."""
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    is_path = isinstance(value, str) and PurePath(value).is_absolute()
    return f"…/{PurePath(value).name}" if is_path else value
