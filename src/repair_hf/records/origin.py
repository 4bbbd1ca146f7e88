"""Whether records were made from some pairs: what they hold of a caption or picture is what the pairs hold now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import ABSENT, inspect_images
from repair_hf.records.columns import MODALITIES, SOURCES
from repair_hf.runtime.items import refuse_changed

PICTURES = 500  # of each role; each is decoded


def check_pairs(records: Dataset, pairs: Pairs) -> None:
    """Compare each caption that records hold with that of the same id in the pairs, and so some of the pictures.

    At most `PICTURES` different pictures of each role are compared, evenly spaced, and no item that one of both
    lacks. A folder of `synthesize` has digests of all items as well, which a `Stage` compares.

    Raises:
        UserError: If some differ; it names the first ones.
    """
    captions = dict(zip(pairs.captions["caption_id"][:], pairs.captions["caption"][:], strict=True))
    looks = dict(zip(pairs.images["image_id"][:], pairs.looks, strict=True)) if pairs.looks else {}
    needed = [name for name in ("direction", *(f"{role}_id" for role in SOURCES)) if name in records.column_names]
    ids = records.select_columns(needed).with_format("pandas")[:]
    changed = {
        name: None
        for direction, kinds in MODALITIES.items()
        for role in SOURCES
        for known in [captions if kinds[role] == "text" else looks]
        for name, content in _held(records, ids, known, direction, role)
        if known[name] != content
    }
    refuse_changed("The dataset of records", list(changed))


def _held(
    records: Dataset, ids: pd.DataFrame, known: Mapping[str, str], direction: str, role: str
) -> Iterator[tuple[str, str]]:
    """Yield the id of each item of a role that is known, with its caption, or with the look of its picture."""
    kind = MODALITIES[direction][role]
    name, column = f"{role}_id", f"{role}_{kind}"
    if not {name, column} <= set(records.column_names):
        return
    rows = ids[(ids["direction"] == direction) & ids[name].isin(known.keys() & set(ids[name]))]
    if kind == "text":
        found = records[column][rows.index.tolist()]
    else:
        rows = rows.drop_duplicates(name)
        rows = rows.iloc[:: len(rows) // PICTURES + 1]
        found = [each.look for each in inspect_images(records.select(rows.index), column)]
    yield from (item for item in zip(rows[name], found, strict=True) if item[1] not in (None, "", ABSENT))
