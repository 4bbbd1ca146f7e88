"""What an analysis looks at: the records of a run, what was dropped, and what else the run's folder tells.

In:  the folder of a run (of `repair-hf demo`, `run` or `synthesize`), or a Hub dataset of records.
Out: `Material`: records with their pictures, and tables of records and dropped failures without them, which stay small enough to be
     counted in memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd
import yaml
from datasets import Dataset, concatenate_datasets

from repair_hf.pairs.dataset import Pairs, load_wanted
from repair_hf.records.columns import DROPPED_COLUMNS, RECORD_COLUMNS
from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.runtime.options import PairsOptions, UserError

PICTURES = ("q_image", "gt_image", "fp_image", "edit_image")
LABELS = "error_types.jsonl"  # what the labelling of image instructions leaves in the folder of records


@dataclass(frozen=True)
class Material:
    """What a run made.

    Args:
        name: For titles: the run's folder or Hub id, without the folders of the machine.
        root: The run's folder; None for a Hub dataset.
        folders: Those of its syntheses, one per round; none for a Hub dataset.
        records: All rounds' records, pictures inside.
        kept: The same without pictures, one row per record, in the same order.
        dropped: What was dropped.
    """

    name: str
    root: Path | None
    folders: Sequence[Path]
    records: Dataset
    kept: pd.DataFrame
    dropped: pd.DataFrame

    @property
    def dataset(self) -> str:
        """The name of the pairs that were repaired, as far as it is on record."""
        return Path(str(self.options.get("pairs", self.name))).name

    @property
    def options(self) -> dict:
        """What the first synthesis was told."""
        path = self.folders[0] / "config.yaml" if self.folders else None
        return yaml.safe_load(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}

    def pairs(self) -> Pairs:
        """The pairs that the records were made from, by the options of the synthesis.

        Raises:
            UserError: If they are not on record, or not where they were.
        """
        options = self.options
        if not options:
            raise UserError(f"{self.name} does not tell which pairs its records were made from; give --pairs.")
        known = {field.name for field in fields(PairsOptions)}
        return load_wanted(PairsOptions(**{name: value for name, value in options.items() if name in known}))

    def labels(self) -> dict[str, list[str]]:
        """record_id -> kinds of error, as far as the image instructions were labelled."""
        return read_labels(self.folders)


def gather(run: str | Path) -> Material:
    """Find the records of a run.

    Args:
        run: Folder of `repair-hf demo`, `run` or `synthesize`, any folder of records, or a Hub dataset.

    Raises:
        UserError: If it holds no records.
    """
    root = Path(run)
    folders = synthesis_folders(root)
    if not folders and (stage := _stage_of(root)) is not None:
        if stage == "synthesize":
            raise UserError(f"{root} holds no records yet; its live.html shows how far the synthesis is.")
        raise UserError(f"{root} is a folder of `{stage}`; give one of `repair-hf demo`, `run` or `synthesize`.")
    sources = folders or [run]
    records = [table for source in sources if len(table := load_kept(source))] or [load_kept(sources[0])]
    return Material(
        name="/".join(root.resolve().parts[-2:]) if root.is_dir() else str(run),
        root=root if root.is_dir() else None,
        folders=folders,
        records=concatenate_datasets(records) if len(records) > 1 else records[0],
        kept=_frame(records, RECORD_COLUMNS),
        dropped=_frame([load_dropped(source) for source in sources], DROPPED_COLUMNS),
    )


def read_labels(folders: Sequence[Path]) -> dict[str, list[str]]:
    """record_id -> kinds of error, as far as the image instructions of these folders of records were labelled."""
    found = {}
    for path in (folder / LABELS for folder in folders):
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            row = json.loads(line)
            found[row["record_id"]] = row["error_types"]
    return found


def synthesis_folders(root: Path) -> list[Path]:
    """The folders of records below a run's folder, by round."""
    rounds = sorted(root.glob("round-*/records"), key=lambda path: int(path.parent.name.removeprefix("round-")))
    return [
        path
        for path in (root, root / "records", *rounds)
        if (path / "records").is_dir() and _stage_of(path) == "synthesize"
    ]


def _stage_of(folder: Path) -> str | None:
    """The command that a folder is of; None for a folder of no stage."""
    path = folder / "versions.json"
    return json.loads(path.read_text(encoding="utf-8"))["command"] if path.is_file() else None


def _frame(tables: Sequence[Dataset], columns: dict) -> pd.DataFrame:
    """The columns that are no pictures, of all tables, one below the other."""
    names = [name for name in columns if name not in PICTURES]
    frames = [table.select_columns(names).with_format("arrow")[:].to_pandas() for table in tables]
    return pd.concat(frames, ignore_index=True)
