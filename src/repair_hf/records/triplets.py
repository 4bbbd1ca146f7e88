"""Export records as triplets (anchor, positive, negative), for trainers of other embedding models.

A folder has a config for each modality of the anchor, with the columns that the losses of sentence-transformers take:

| config | anchor | positive | negative |
|---|---|---|---|
| `text_to_image` | caption | image | image |
| `image_to_text` | image | caption | caption |

A record gives four triplets. With its query as the anchor, the ground truth and the edit are positives, and the false
positive is the negative. With each of these positives as the anchor, the query is the positive, and the negative is
what the pairs show or say of the false positive.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, Features, Image, Value

from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import undecoded
from repair_hf.pairs.wording import bare_caption
from repair_hf.records.cards import write_card
from repair_hf.records.columns import MODALITIES
from repair_hf.records.dataset import Place, build, load_records
from repair_hf.records.parquet import write_parquet
from repair_hf.runtime.items import check_items
from repair_hf.runtime.options import UserError, flags
from repair_hf.runtime.run_folder import digest
from repair_hf.runtime.stage import Stage

_TEXT, _IMAGE = Value("string"), Image()
FEATURES = {
    "text_to_image": Features(anchor=_TEXT, positive=_IMAGE, negative=_IMAGE),
    "image_to_text": Features(anchor=_IMAGE, positive=_TEXT, negative=_TEXT),
}
COMPOSED = Features(pair_id=_TEXT, reference=_IMAGE, caption=_TEXT, target=_IMAGE, target_caption=_TEXT)
WAYS = {"t2i": ("text_to_image", "image_to_text"), "i2t": ("image_to_text", "text_to_image")}
Row = dict[str, Any]


def triplets(records: Dataset, counterpart_of: Counterparts) -> Iterator[tuple[str, Row]]:
    """Yield each triplet after the name of its config; images are cells of bytes or a path.

    A record whose false positive is not in the pairs gives two triplets instead of four. So does one whose false
    positive has the query as its counterpart.
    """
    for record, (q, gt, fp, edit) in undecoded_records(records):
        forth, back = WAYS[record["direction"]]
        counterpart = counterpart_of(record)
        for match in (gt, edit):
            yield forth, {"anchor": q, "positive": match, "negative": fp}
            if counterpart is not None:
                yield back, {"anchor": match, "positive": q, "negative": counterpart}


def export_triplets(
    records: Place | Sequence[Place],
    pairs: Pairs,
    output: str | Path,
    *,
    revision: str | None = None,
) -> dict[str, int]:
    """Write records as triplets for sentence-transformers, as `repair-hf export triplets` does.

    Args:
        records: Folders, Hub ids or datasets, as for `load_records`.
        pairs: The pairs that they were made from.
        output: Folder to write; a finished one is left as it is. `load_dataset(output, config)` reads it.
        revision: Tag, branch or commit of records on the Hub.

    Returns:
        The number of triplets of each config that has any.

    Raises:
        UserError: If the records are of other pairs, an image cannot be read, or the folder holds something else.

    Example:
        >>> export_triplets("runs/records", load_pairs("data/mine"), "runs/triplets")
    """
    loaded, stage = _open("export triplets", records, pairs, output, revision, "*/*.parquet")
    return stage.run(lambda folder: _write(loaded, pairs, Path(output)))


def export_composed(
    records: Place | Sequence[Place], pairs: Pairs, output: str | Path, *, revision: str | None = None
) -> dict[str, int]:
    """Write edits of images for composed retrieval, as `repair-hf export composed` does.

    A row has a `reference` image, the `caption` that says what to change, and the `target` image, as in CIRR. These
    are the false positive, the instruction and the edit. `target_caption` is the query.

    Returns:
        The number of `rows`.

    Raises:
        UserError: As `export_triplets`; or if no record edits an image.
    """
    loaded, stage = _open("export composed", records, pairs, output, revision, "train/*.parquet")

    def write(_: Path | None) -> dict[str, int]:
        folder = Path(output)
        pattern, count = write_rows(folder / "train", composed(loaded), COMPOSED)
        if not count:
            raise UserError("No record edits an image (t2i). Mine with --d-t2i 1, and repair these failures.")
        write_card(folder, "composed", pattern=pattern, count=count)
        return {"rows": count}

    return stage.run(write)


def composed(records: Dataset) -> Iterator[Row]:
    """Yield a row of `COMPOSED` for each edit of an image."""
    for record, (q, _, fp, edit) in undecoded_records(records):
        if record["direction"] == "t2i":
            text = {"pair_id": record["record_id"], "caption": record["edit_instruction"], "target_caption": q}
            yield text | {"reference": fp, "target": edit}


def _open(
    command: str,
    records: Place | Sequence[Place],
    pairs: Pairs,
    output: str | Path,
    revision: str | None,
    files: str,
) -> tuple[Dataset, Stage]:
    """Load records with their images, and open the folder of an export, which gets `files`."""
    places: list[Any] = [records] if isinstance(records, str | Path | Dataset | DatasetDict) else list(records)
    folders = [str(place) for place in places if isinstance(place, str | Path)]
    for folder in folders:
        check_items(folder, pairs.items)
    loaded = load_records(places, pairs=pairs, revision=revision)
    named = {"records": folders, "records_revision": revision}
    digests = {"pairs_fingerprint": pairs.fingerprint, "records_digest": digest(loaded["record_id"][:])}
    more: Any = {"words": flags(named), "items": pairs.items, "writes": ("README.md", files)}
    return loaded, Stage(command, output, [pairs.source], named | digests, **more)


def undecoded_records(records: Dataset) -> Iterator[tuple[Row, list[Any]]]:
    """Yield each record, and its q, gt, fp and edit: captions, or images as cells of bytes or a path."""
    for role in ("q", "gt", "fp", "edit"):
        records = records.cast_column(f"{role}_image", Image(decode=False))
    for record in records:
        yield record, [record[f"{role}_{kind}"] for role, kind in MODALITIES[record["direction"]].items()]


def write_rows(folder: Path, rows: Iterable[Row], features: Features) -> tuple[str, int]:
    """Write rows as Parquet into a folder; return the pattern of the files' names, and the number of rows."""
    draft = folder.with_name(f".{folder.name}.arrow")
    table = build(rows, draft, features)
    pattern = write_parquet(folder, table) if len(table) else ""
    draft.unlink()
    return pattern, len(table)


def _write(records: Dataset, pairs: Pairs, folder: Path) -> dict[str, int]:
    files, counts, counterparts = {}, {}, Counterparts(pairs)
    if not any(counterparts.knows(record) for record in records.select_columns(["direction", "fp_id"])):
        raise UserError("No record names a false positive of these pairs. Give the pairs that the records are from.")
    for config, features in FEATURES.items():
        rows = (row for name, row in triplets(records, counterparts) if name == config)
        pattern, count = write_rows(folder / config, rows, features)
        if count:
            files[config], counts[config] = pattern, count
    write_card(folder, "triplets", files=files, counts=counts, names=tuple(counts))
    return counts


class Counterparts:
    """What the pairs hold for a false positive in the other modality: an image's caption, a caption's image."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs, self.images = pairs, undecoded(pairs.images, "image")
        self.captions: list[str] = pairs.captions["caption"][:]
        self.image_rows = {name: row for row, name in enumerate(pairs.images["image_id"][:])}
        self.caption_rows = {name: row for row, name in enumerate(pairs.captions["caption_id"][:])}

    def knows(self, record: Row) -> bool:
        rows = self.image_rows if record["direction"] == "t2i" else self.caption_rows
        return record["fp_id"] in rows

    def __call__(self, record: Row) -> Any:
        if not self.knows(record):
            return None
        if record["direction"] == "i2t":
            image = int(self.pairs.caption_image[self.caption_rows[record["fp_id"]]])
            is_query = image == self.image_rows.get(record["q_id"])
            return None if is_query else self.images[image]["image"]
        captions = [self.captions[row] for row in self.pairs.captions_of(self.image_rows[record["fp_id"]])]
        return next((text for text in captions if bare_caption(text) != bare_caption(record["q_text"])), None)
