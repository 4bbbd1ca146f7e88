"""Records as a `datasets` dataset: one (q, gt, fp, edit) per repaired failure.

A folder of records has two configs: `records`, and `dropped` with every failure that was not repaired and the reason.
Both can be read with `load_dataset(folder, "records")`, the Hub's viewer and `load_records`. The columns of the other
modality are null: t2i records have `q_text`, `gt_image`, `fp_image`, `edit_image`; i2t records have `q_image`,
`gt_text`, `fp_text`, `edit_text`.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow.compute as pc
from datasets import (
    Dataset,
    DatasetDict,
    Features,
    Image,
    concatenate_datasets,
    get_dataset_config_names,
    load_dataset_builder,
)
from datasets.arrow_writer import ArrowWriter  # seen with datasets 5.2

from repair_hf.pairs.admission import admit_images
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.folders import UNLOADABLE, load_files, loading
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.tables import in_memory
from repair_hf.records.cards import write_card
from repair_hf.records.columns import DIRECTIONS, MODALITIES, REASONS, RECORD_COLUMNS, SOURCES
from repair_hf.records.columns import DROPPED_FEATURES as DROPPED_FEATURES
from repair_hf.records.columns import FEATURES as FEATURES
from repair_hf.records.images import restore_images
from repair_hf.records.parquet import write_parquet
from repair_hf.runtime.files import read_table
from repair_hf.runtime.hub_access import name_for_datasets
from repair_hf.runtime.options import UserError, expect
from repair_hf.runtime.stage import open_in, refuse_unfinished

logger = logging.getLogger(__name__)

Place: TypeAlias = str | Path | Dataset | DatasetDict
"""Where records are: a folder, a Hub id, or in memory."""


class NoRecords(UserError):
    """No failure was repaired: all were dropped, or there were none."""


def build(rows: Iterable[dict[str, Any]], path: Path, features: Features = FEATURES) -> Dataset:
    """Write rows atomically to an Arrow file as they come, and open it as a dataset on disk.

    Columns that a row lacks are null; images are {"bytes": …, "path": …}.
    """
    draft = path.with_name(f".{path.name}.tmp")
    empty = dict.fromkeys(features)
    with ArrowWriter(path=str(draft), features=features) as writer:
        for row in rows:
            writer.write(empty | row)
        writer.finalize()
    draft.replace(path)
    return Dataset.from_file(str(path))


def record_id(row: dict[str, Any], edit: str | bytes) -> str:
    """Name a record by its content: equal content has an equal id in any run, on any machine.

    `row` needs `direction`, the three ids, the texts of its direction and `edit_instruction`; `edit` is the edited
    caption, or the bytes of the edited image's file.
    """
    ids, texts = ([row.get(f"{role}_{kind}") for role in SOURCES] for kind in ("id", "text"))
    name = hashlib.sha256(json.dumps([row["direction"], *ids, *texts, row["edit_instruction"]]).encode())
    name.update(edit.encode() if isinstance(edit, str) else edit)
    return name.hexdigest()[:16]


def save_records(folder: str | Path, records: Dataset, dropped: Dataset, *, embed_source_images: bool = True) -> None:
    """Write both configs as Parquet with the images inside, and the README.md that declares them.

    `embed_source_images=False` leaves out the images of q, gt and fp, if they may not be redistributed;
    `load_records(…, pairs=…)` restores them by id.
    """
    check(records)
    folder = Path(folder)
    left_out = () if embed_source_images else tuple(f"{role}_image" for role in SOURCES)
    files = {
        "records": write_parquet(folder / "records", records, left_out),
        "dropped": write_parquet(folder / "dropped", dropped),
    }
    # `datasets` and the viewer fail for a split without rows: if nothing was dropped there is no config `dropped`
    counts = {"records": len(records), "dropped": len(dropped)}
    write_card(folder, "records", **counts, files=files, columns=RECORD_COLUMNS, reasons=REASONS)
    # from here on the new files count
    for config, pattern in files.items():
        for old in set((folder / config).iterdir()) - set((folder / config).glob(pattern)):
            old.unlink()


def load_records(
    path_or_repo: Place | Sequence[Place],
    *,
    pairs: Pairs | None = None,
    revision: str | None = None,
) -> Dataset:
    """Load the `records` config of a folder or Hub dataset, or of several rounds, one after the other.

    Args:
        path_or_repo: Folders of `save_records`, Hub ids, or datasets in memory. Some of several may be empty; no
            record may stand in two.
        pairs: The pairs that the records were made from, to restore source images that were left out.
        revision: Tag, branch or commit of a Hub dataset, such as `round-1`; its newest by default.

    Raises:
        NoRecords: If no failure was kept there.
        UserError: If there is no such dataset, its synthesis was killed, a record is incomplete or stands there
            twice, or `pairs` lack an image.
    """
    is_one = isinstance(path_or_repo, str | Path | Dataset | DatasetDict) or not isinstance(path_or_repo, Sequence)
    places: Any = [path_or_repo] if is_one else list(path_or_repo)  # type: ignore[arg-type]
    for place in places:
        expect(place, (str, Path, Dataset, DatasetDict), "path_or_repo", "a folder, a Hub id, or a Dataset of records")
    tables = [table for place in places if len(table := load_kept(place, revision=revision))]
    named = ", ".join(str(place) if isinstance(place, str | Path) else "the dataset" for place in places)
    if not tables:
        raise NoRecords(f"{named} holds no records: no failure was kept. The config `dropped` gives the reasons.")
    records = concatenate_datasets(tables) if len(tables) > 1 else tables[0]
    if len(tables) > 1 and (doubles := len(records) - len(set(records["record_id"][:]))):
        raise UserError(f"{doubles} records stand in more than one of {named}; name each round's records once.")
    return records if pairs is None else restore_images(records, pairs)


def load_kept(path_or_repo: Place, *, revision: str | None = None) -> Dataset:
    """Load the `records` config, even if it has no rows; a record that `check` refuses is an error.

    Of a synthesis that stopped these are the records it had finished; a warning counts what is still open. Images are
    opened, and not decoded.
    """
    if isinstance(path_or_repo, Dataset | DatasetDict):
        rows = one_split(path_or_repo).with_format(None)
        check(rows)
        return rows
    rows = _load(path_or_repo, "records", FEATURES, revision)
    if count := open_in(Path(path_or_repo)):
        logger.warning(
            "%s: %s failures are still open. Run what its command.txt holds to go on.", path_or_repo, f"{count:,}"
        )
    check(rows)
    images = [name for name in rows.column_names if isinstance(FEATURES[name], Image)]
    return admit_images(rows, path_or_repo, images)


def one_split(data: Dataset | DatasetDict) -> Dataset:
    """Return a dataset, or the only split of several.

    Raises:
        UserError: If there are several.
    """
    if isinstance(data, Dataset):
        return data
    if len(data) != 1:
        raise UserError(f"The DatasetDict has the splits {list(data)}; give one of them, such as `data['train']`.")
    return next(iter(data.values()))


def load_dropped(path_or_repo: str | Path, *, revision: str | None = None) -> Dataset:
    """Load the `dropped` config; it has no rows if every failure was repaired."""
    dropped = _load(path_or_repo, "dropped", DROPPED_FEATURES, revision)
    check_columns(dropped, DROPPED_FEATURES, "Dropped failures")
    return admit_images(dropped, path_or_repo, ())


def check(records: Dataset) -> None:
    """Check that a dataset holds complete records.

    Raises:
        UserError: If columns are missing or of another type, a direction is unknown, or a record lacks a cell.
    """
    check_columns(records)
    columns = records.with_format("arrow")
    directions = columns["direction"][:]
    if unknown := set(directions.unique().to_pylist()) - set(DIRECTIONS):
        raise UserError(
            f"Records have a `direction` of {sorted(map(str, unknown))}; only {list(DIRECTIONS)} are known."
        )
    for direction, kinds in MODALITIES.items():
        is_here = pc.equal(directions, direction)
        texts = [f"{role}_text" for role in SOURCES if kinds[role] == "text"]
        for name in ("record_id", "q_id", "gt_id", "fp_id", *texts, f"edit_{kinds['edit']}"):
            lacking = np.flatnonzero(pc.and_(is_here, columns[name][:].is_null()).to_numpy())
            if len(lacking):
                raise UserError(
                    f"{len(lacking)} {direction} records have no `{name}`, such as row {lacking[0]}. Make them again "
                    "with `repair-hf synthesize`, or filter them out."
                )


def summarize(records: Dataset, dropped: Dataset) -> dict[str, dict[str, Any]]:
    """Count what became of the failures, per direction.

    Returns:
        direction -> `mined`, `kept`, `dropped` (reason -> count), `error_types` (type -> share of kept records that
        name it), `edit_similarity` (mean over the kept records, None if there is none).
    """
    kept = records.select_columns(["direction", "error_types", "edit_similarity"]).to_list()
    left = dropped.select_columns(["direction", "reason"]).to_list()
    found = {}
    for direction in DIRECTIONS:
        rows = [row for row in kept if row["direction"] == direction]
        reasons = Counter(row["reason"] for row in left if row["direction"] == direction)
        types = Counter(name for row in rows for name in row["error_types"] or ())
        similarities = [row["edit_similarity"] for row in rows if row["edit_similarity"] is not None]
        found[direction] = {
            "mined": len(rows) + reasons.total(),
            "kept": len(rows),
            "dropped": {reason: reasons[reason] for reason in REASONS if reasons[reason]},
            "error_types": {name: count / len(rows) for name, count in types.most_common()},
            "edit_similarity": sum(similarities) / len(similarities) if similarities else None,
        }
    return found


def _load(path_or_repo: str | Path, config: str, features: Features, revision: str | None) -> Dataset:
    folder = Path(path_or_repo)
    refuse_unfinished(folder)
    remedy = "Make them with `repair-hf synthesize`, or give the folder or Hub id of records."
    with loading(path_or_repo, remedy, "holds no records"):
        rows = _read_folder(folder, config) if folder.exists() else _read_hub(path_or_repo, config, revision)
    if rows is None:
        return in_memory(features.arrow_schema.empty_table(), features)
    return rows.select_columns([name for name in features if name in rows.column_names])


def _read_folder(folder: Path, config: str) -> Dataset | None:
    """Load the Parquet files of a config, which are all files in the folder of its name; None without rows."""
    if not any(folder.glob("records/*.parquet")):
        raise FileNotFoundError("there is no file records/*.parquet")
    files = sorted((folder / config).glob("*.parquet"))
    try:
        return load_files({"train": files}, Problems()).get("train") if files else None
    except UNLOADABLE:
        for file in files:
            read_table(file)  # raises an error that names a damaged file
        raise


def _read_hub(repo: str | Path, config: str, revision: str | None) -> Dataset | None:
    """Load a config of a dataset of the Hub; None without rows."""
    source = name_for_datasets(repo)
    if config == "dropped" and get_dataset_config_names(source, revision=revision) == ["records"]:
        return None  # every failure was repaired, see `save_records`
    builder = load_dataset_builder(source, config, revision=revision)
    builder.download_and_prepare()
    has_rows = builder.info.splits["train"].num_examples  # `as_dataset` fails for a split without rows
    return builder.as_dataset(split="train") if has_rows else None


def check_columns(table: Dataset, features: Features = FEATURES, what: str = "Records") -> None:
    """Raise an error if a table lacks columns, or they are of other types."""
    if missing := [name for name in features if name not in table.column_names]:
        raise UserError(
            f"{what} lack the columns {missing}; they have {table.column_names}. Make them with "
            "`repair-hf synthesize`."
        )
    found = table.features  # a copy each time
    if wrong := [name for name, kind in features.items() if found[name] != kind]:
        kinds = {name: found[name] for name in wrong}
        raise UserError(
            f"{what} have columns of other types: {kinds}. Cast them with `Dataset.cast` and the features of "
            "repair_hf.records.dataset."
        )
