"""Whether records were made from some pairs: what they hold of a caption or picture is what the pairs hold now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pandas as pd
from datasets import Dataset

from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import ABSENT, inspect_images
from repair_hf.records.columns import MODALITIES, SOURCES
from repair_hf.runtime.items import refuse_changed

PICTURES = 500  # of each role; each is decoded


def with_ids_of(pairs: Pairs, records: Dataset) -> Dataset:
    """Name the items of records by the ids that the pairs have now: their folder, or the rule for ids, may differ.

    A picture that a record holds is found by its look. If some are, a caption is found by its picture and place, or
    else by its text. An item that is not among the pairs, or is there twice, keeps its id.
    """
    order = records.column_names
    if "direction" not in order:  # no records, as the readers of their columns say
        return records
    roles = [role for role in SOURCES if f"{role}_id" in order]
    ids = records.select_columns(["direction", *(f"{role}_id" for role in roles)]).with_format("pandas")[:]
    captions = pairs.captions["caption_id"][:]
    names = _once(zip(pairs.looks, pairs.images["image_id"][:], strict=False))
    now = {name: names[look] for name, look in _lost(records, ids, "image", pairs.images["image_id"]) if look in names}
    if not now:
        return records
    texts, known = _once(zip(pairs.captions["caption"][:], captions, strict=True)), set(captions)
    for name, text in _lost(records, ids, "text", captions):
        image, _, place = name.rpartition("#")
        found = f"{now.get(image)}#{place}"
        now[name] = found if found in known else texts.get(text, name)
    for role in roles:
        column = [now.get(name, name) for name in ids[f"{role}_id"]]
        records = records.remove_columns(f"{role}_id").add_column(f"{role}_id", column)
    return records.select_columns(order)


def _lost(records: Dataset, ids: pd.DataFrame, kind: str, known: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the id of each item of a modality that is not among the known ones, with its content."""
    for direction, kinds in MODALITIES.items():
        for role in (role for role in SOURCES if kinds[role] == kind and f"{role}_id" in ids):
            lost = set(ids[f"{role}_id"][ids["direction"] == direction]) - set(known) - {None}
            yield from (
                _held(records, ids, dict.fromkeys(lost, ""), direction, role, most=len(records) + 1) if lost else ()
            )


def _once(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map each content to its id, without those that several ids have."""
    found: dict[str, str | None] = {}
    for content, name in items:
        found[content] = None if content in found else name
    return {content: name for content, name in found.items() if name is not None}


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
    records: Dataset, ids: pd.DataFrame, known: Mapping[str, str], direction: str, role: str, most: int = PICTURES
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
        rows = rows.iloc[:: len(rows) // most + 1]
        found = [each.look for each in inspect_images(records.select(rows.index), column)]
    yield from (item for item in zip(rows[name], found, strict=True) if item[1] not in (None, "", ABSENT))
