"""Tell the kinds of sources apart: a folder with `captions.jsonl`, a caption JSON, or a table or dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from datasets import Dataset, DatasetDict

from repair_hf.pairs.annotations import read_annotations
from repair_hf.pairs.problems import Problems
from repair_hf.pairs.sources import Columns, Listing, read_dataset, read_folder
from repair_hf.runtime.options import UserError

COLUMNS = Columns("image", "caption")  # default columns of a dataset


def read_listing(
    source: str, problems: Problems, splits: Sequence[str], columns: Columns, data: Dataset | DatasetDict | None
) -> Listing:
    """List what a source holds; `data` is a dataset in memory, whose name in messages is `source`.

    Raises:
        UserError: If there is no such source, or it is none of these kinds.
    """
    if data is not None:
        return read_dataset(source, splits, columns, problems, data)
    path = Path(source)
    is_folder, is_json = (path / "captions.jsonl").is_file(), path.suffix == ".json"
    if columns.folder is not None and is_folder:
        raise UserError(
            f"`image_folder` {columns.folder} is for a caption JSON, a table or a dataset, but `{source}` is none of "
            "these. Leave it out."
        )
    others = replace(columns, folder=None, group=None if is_folder else columns.group)
    if (is_folder or is_json) and others != COLUMNS:
        named = {"image_column": others.image, "caption_column": others.caption, "image_id_column": others.image_id}
        named |= {"group": others.group, "pairs_config": others.config, "pairs_revision": others.revision}
        named |= {name: "on" if getattr(others, name) else None for name in ("private_urls", "stream")}
        given = " and ".join(f"`{option}` {value}" for option, value in named.items() if value is not None)
        raise UserError(f"{given} are for a table or a dataset, but `{source}` is neither; leave them out.")
    if is_folder:
        return read_folder(path, columns.group, problems)
    if not is_json:
        return read_dataset(source, splits, columns, problems)
    if not path.is_file():
        raise UserError(f"`{source}` does not exist; give the path of a caption JSON, COCO's or Karpathy's.")
    if columns.folder is None or not columns.folder.is_dir():
        raise UserError(f"`image_folder` must be the folder of the images in {source}, got {columns.folder}.")
    return read_annotations(path, columns.folder, problems)
