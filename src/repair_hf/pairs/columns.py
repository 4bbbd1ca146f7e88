"""The columns of a source: which hold images and captions, and whether they can."""

from __future__ import annotations

from collections.abc import Sequence

from datasets import Dataset, Image, LargeList, List
from datasets.features.features import require_decoding  # seen with datasets 5.2

from repair_hf.pairs.captions import TEXT_FILE
from repair_hf.pairs.folders import KINDS
from repair_hf.pairs.rows import BYTES, ID_COLUMNS, MAYBE_IDS, TEXTS
from repair_hf.pairs.tables import IMAGE, is_table
from repair_hf.runtime.options import PairsOptions, UserError


def image_columns(named: str, columns: Sequence[str]) -> list[str]:
    """Return the columns of images: the named one, or those of tars, which have one for each kind of file."""
    kinds = [name for name in KINDS if name in columns]
    is_default = named == PairsOptions.image_column and named not in columns
    return kinds if kinds and (named in kinds or is_default) else [named]


def caption_columns(named: str, columns: Sequence[str]) -> list[str]:
    """Return the columns of captions: the named ones, or by default the first usual name."""
    usual = [name for name in ("captions", TEXT_FILE) if name in columns]
    if named in columns:
        return [named]
    if named == PairsOptions.caption_column and usual:
        return usual[:1]
    return [name.strip() for name in named.split(",")]


def check_columns(
    rows: Dataset, options: PairsOptions, images: Sequence[str], captions: Sequence[str], *, takes_paths: bool
) -> None:
    """Check that the columns are there, and of types that can hold images, captions and ids.

    Raises:
        UserError: For the first one that is not; it names the columns, and the option to set.
    """
    asked: list[tuple[str, str | None]] = [("image_column", name) for name in images]
    asked += [("caption_column", name) for name in captions]
    asked += [("image_id_column", options.image_id_column), ("group", options.group)]
    for option, column in asked:
        if column is not None and column not in rows.features:
            remedy = _remedy(options.pairs, option, rows.column_names)
            raise UserError(f"`{options.pairs}` has no column `{column}`; it has {rows.column_names}. {remedy}")
    image = rows.features[images[0]]
    if not isinstance(image, Image) and not (image in TEXTS and takes_paths):
        raise UserError(
            f"Column `{images[0]}` of `{options.pairs}` holds {image}; it must hold image files: their "
            "bytes, paths, or `datasets.Image()`. Set `image_column` to such a column."
        )
    for name in captions:
        caption = rows.features[name]
        inner = caption.feature if isinstance(caption, List | LargeList) else caption
        if inner not in TEXTS:
            raise UserError(
                f"Column `{name}` of `{options.pairs}` holds {caption}; it must hold a string or a list of strings."
            )


def _remedy(source: str, option: str, columns: Sequence[str]) -> str:
    if is_table(source) and any(map(IMAGE.fullmatch, columns)):
        return "Write the names of the columns into its first line."
    if option == "caption_column" and set(columns) <= {"image", "label"}:
        return "Put a captions.jsonl, or a text of the same name as each image, beside the images."
    return f"Set `{option}`."


def with_ids(rows: Dataset, needed: Sequence[str]) -> list[str]:
    """Return the needed columns, and those that may hold ids and splits."""
    others = [name for name in (*ID_COLUMNS, *MAYBE_IDS, "split") if name in rows.features]
    # what decodes would open files
    return list(dict.fromkeys((*needed, *(name for name in others if not require_decoding(rows.features[name])))))


def with_images(rows: Dataset, columns: Sequence[str]) -> Dataset:
    """Let columns of image files, as bytes or as structs of bytes and path, be columns of images."""
    for column in columns:
        kind = rows.features.get(column)
        if kind in BYTES or isinstance(kind, dict) and {"bytes"} <= set(kind) <= {"bytes", "path"}:
            rows = rows.cast_column(column, Image())
    return rows
