"""The data of a run for analysis: its records, its dropped failures, the pairs that they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from datasets import Dataset, concatenate_datasets

from repair_hf.analysis.evaluations import find_evaluations, records_of, stages_below
from repair_hf.pairs.dataset import Pairs, load_wanted
from repair_hf.records.columns import DROPPED_COLUMNS, RECORD_COLUMNS
from repair_hf.records.dataset import load_dropped, load_kept
from repair_hf.runtime.files import read_yaml
from repair_hf.runtime.options import PairsOptions, UserError, fields_of
from repair_hf.runtime.stage import REMAKE, command_of, refuse_unfinished
from repair_hf.synthesis.rounds import records_of_rounds

PairsPlace: TypeAlias = Pairs | str | Path | None
"""The pairs of a run, or where they are now; None for what the run records."""


@dataclass(frozen=True)
class RunData:
    """The data of a run."""

    home: str | Path  # folder or Hub id of the first records, which names the pairs
    name: str  # last two parts of the run's folder, or its Hub id
    root: Path | None  # None for a Hub dataset
    folders: Sequence[Path]  # of records, one per round; none for a Hub dataset
    ignored: Mapping[str, str]  # other records below the run's folder or of an evaluated model, with the reason
    records: Dataset  # of all rounds, with their images
    kept: pd.DataFrame  # the records without images, in the same order
    dropped: pd.DataFrame  # failures


def moved_pairs(run: str | Path, pairs: PairsPlace) -> Pairs | None:
    """Return the pairs of a run if somebody names them or where they are now; None if nobody does."""
    return None if pairs is None else recorded_pairs(run, pairs)


def recorded_pairs(run: str | Path, pairs: PairsPlace = None) -> Pairs:
    """Return the pairs of a run, loaded by the options that it or its first synthesis records, or else all splits.

    Raises:
        UserError: If they are not on record, or not where they were.
    """
    if isinstance(pairs, Pairs):
        return pairs
    folder = next(iter(synthesis_folders(Path(run))), Path(run))
    path = folder / "config.yaml"
    options = read_yaml(path, remedy=REMAKE) if path.is_file() else {"split": "all"}
    known: Any = {name: options[name] for name in fields_of(PairsOptions) if name in options}
    if pairs is not None:
        known["pairs"] = str(pairs)
    if not known.get("pairs"):
        raise UserError(f"{folder} does not say which pairs it was made from; give --pairs.")
    return load_wanted(PairsOptions(**known))


def gather(run: str | Path) -> RunData:
    """Load the records of a run.

    Args:
        run: Folder of `repair-hf demo`, `run` or `synthesize`, any folder of records, or a Hub dataset.

    Raises:
        UserError: If it holds no records.
    """
    root = Path(run)
    folders, ignored = _followed(root)
    if not folders and (stage := command_of(root)) is not None:
        if stage == "synthesize":
            refuse_unfinished(root)
            raise UserError(f"{root} holds no records; run `repair-hf synthesize` again.")
        raise UserError(f"{root} is a folder of `{stage}`; give a folder of `repair-hf demo`, `run` or `synthesize`.")
    sources: list[str | Path] = [*folders] or [run]
    records = [table for source in sources if len(table := load_kept(source))] or [load_kept(sources[0])]
    return RunData(
        home=folders[0] if folders else run,
        name="/".join(root.resolve().parts[-2:]) if root.is_dir() else str(run),
        root=root if root.is_dir() else None,
        folders=folders,
        ignored=ignored,
        records=concatenate_datasets(records) if len(records) > 1 else records[0],
        kept=_frame(records, RECORD_COLUMNS),
        dropped=_frame([load_dropped(source) for source in sources], DROPPED_COLUMNS),
    )


def synthesis_folders(root: Path) -> list[Path]:
    """Find the folders of records of a run, by round."""
    return [
        path
        for path in (root, root / "records", *records_of_rounds(root))
        if (path / "records").is_dir() and command_of(path) == "synthesize"
    ]


def _followed(root: Path) -> tuple[list[Path], dict[str, str]]:
    """Return the folders of records that a report is about, and the records that it ignores.

    These are the records that the evaluated models were trained on. Before an evaluation, they are those of the run.
    """
    own = synthesis_folders(root)
    if own == [root] or not root.is_dir():
        return own, {}
    models = [metrics.get("model", "") for metrics in find_evaluations(root).measured.values()]
    named = list(dict.fromkeys(place for model in models for place in records_of(model)))
    followed = [Path(place) for place in named if command_of(Path(place)) == "synthesize"] or own
    known = {folder.resolve() for folder in followed}
    ignored = {place: "it is not here, or not made by synthesize" for place in named if Path(place) not in followed}
    for folder in stages_below(root, "synthesize"):
        if folder.resolve() not in known:
            ignored.setdefault(str(folder), "no evaluated model was trained on it")
    return followed, ignored


def _frame(tables: Sequence[Dataset], columns: dict) -> pd.DataFrame:
    names = [name for name in columns if not name.endswith("_image")]
    frames = [table.select_columns(names).with_format("arrow")[:].to_pandas() for table in tables]
    return pd.concat(frames, ignore_index=True)
