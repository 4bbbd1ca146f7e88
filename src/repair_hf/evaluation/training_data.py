"""What a retriever was trained on, by the files that `repair-hf train` left in its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from repair_hf.runtime.files import read_json, read_table, read_yaml
from repair_hf.runtime.items import FILE
from repair_hf.runtime.options import UserError

IDS = ("q_id", "gt_id", "fp_id")


def find_trainings(model: Any) -> dict[Path, dict[str, Any]]:
    """Find the folder and the options of a model's training, then of that of the model it started from, and so on."""
    found: dict[Path, dict[str, Any]] = {}
    while isinstance(model, str | Path) and (folder := _training_folder(Path(model))) is not None:
        if folder in found:
            break
        found[folder] = read_yaml(folder / "config.yaml")
        model = found[folder].get("model")
    return found


def uses_records(options: Mapping[str, Any]) -> bool:
    """Return whether a training used records; `negatives` is the name of `loss` in earlier versions."""
    return options.get("records") is not None and "none" not in (options.get("loss"), options.get("negatives"))


def plain_before(models: Mapping[str, Any]) -> dict[str, list[str]]:
    """Map each model that was trained with records to those before it that were trained without.

    Their difference shows what the records add.

    Args:
        models: The models by short name, in their order.
    """
    found: dict[str, list[str]] = {}
    plain: list[str] = []
    for name, model in models.items():
        newest = next(iter(find_trainings(model).values()), None)
        if newest is not None and uses_records(newest):
            found[name] = list(plain)
        elif newest is not None:
            plain.append(name)
    return found


def check_unseen(records: Dataset, places: Sequence[str], models: Mapping[str, Any]) -> dict[str, bool]:
    """Check that no model was trained on what some records are about.

    Args:
        records: The records.
        places: Their folders or Hub ids.
        models: The models by short name.

    Returns:
        Whether this is certain, by short name: False for a model, or records, whose data are not known here.

    Raises:
        UserError: If a model was trained on them, or on an image or caption of theirs.
    """
    used = {name for column in IDS for name in records[column]}
    certain = {}
    for name, model in models.items():
        sources: list[Path] = []  # the folders that name what it read: its own, and those of its records
        for folder, options in find_trainings(model).items():
            own = options.get("records") or []
            sources += [folder, *map(Path, [own] if isinstance(own, str) else own)]
        verdicts = [_have_common_items(source, Path(place), used) for source in sources for place in places]
        if any(verdicts):
            raise UserError(
                f"`near_misses` {', '.join(places)}: {name} was trained on images or captions of these records. Mine "
                "and synthesize them in a split that no model was trained on, such as test."
            )
        certain[name] = bool(sources) and None not in verdicts
    return certain


def _training_folder(model: Path) -> Path | None:
    folder = model.parent if model.name.startswith("checkpoint-") else model
    is_training = (folder / "config.yaml").is_file() and (folder / "versions.json").is_file()
    return folder if is_training and read_json(folder / "versions.json").get("command") == "train" else None


def _have_common_items(source: Path, records: Path, used: set[str]) -> bool | None:
    """Return whether a stage read an image or caption that records use; None if a folder does not say what it read."""
    if source == records or (source.exists() and records.exists() and source.samefile(records)):
        return True
    if not (source / FILE).is_file() or not (records / FILE).is_file():
        return None
    tables = [read_table(folder / FILE, needs=("kind", "id", "digest")) for folder in (source, records)]
    first, second = (table.filter(pc.is_in(table["id"], pa.array(list(used), pa.string()))) for table in tables)
    both = first.join(second, keys=["kind", "id", "digest"], join_type="inner")
    return bool(len(both))
