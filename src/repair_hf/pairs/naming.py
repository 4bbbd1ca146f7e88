"""Name the images of a dataset: by a column of ids that is given, or that is found by its name."""

from __future__ import annotations

from datasets import ClassLabel, Dataset, Value

from repair_hf.pairs.cells import equal_cells

TEXTS = (Value("string"), Value("large_string"))
ID_COLUMNS = ("image_id", "filename")  # name the images
MAYBE_IDS = ("cocoid", "id")  # do so where they repeat with the image; else they may number the captions


def image_ids(
    rows: Dataset, column: str | None, own: list[str], splits: list[str | None] | None, images: Dataset
) -> list[str]:
    """Return the name of each row's image: that of the column that names them, given or found, else its own."""
    column = column or next((name for name in ID_COLUMNS if name in rows.features), None)
    maybe = [name for name in MAYBE_IDS if column is None and name in rows.features]
    if column is None and not maybe:
        return own
    look = equal_cells(images, "image")
    column = column or next((name for name in maybe if _repeats_with(plain_texts(rows, name), look)), None)
    if column is None:
        return own
    given = rows[column][:]
    ids = [mine if name in (None, "") else str(name) for mine, name in zip(own, given, strict=True)]
    return ids if splits is None else _distinct(ids, splits, look)


def _repeats_with(names: list[str | None], look: list[int]) -> bool:
    """Whether some name repeats, and every image has a name of its own."""
    both = len(set(zip(names, look, strict=True)))
    return both < len(names) and both == len(set(names)) == len(set(look))


def plain_texts(rows: Dataset, column: str) -> list[str | None]:
    """Return a column of strings, class labels or other values as strings."""
    feature, values = rows.features[column], rows[column][:]
    name = feature.int2str if isinstance(feature, ClassLabel) else str
    return values if feature in TEXTS else [None if value is None else name(value) for value in values]


def _distinct(ids: list[str], splits: list[str | None], look: list[int]) -> list[str]:
    """Put the split before ids that splits use for different images; `look` is equal for equal images."""
    first: dict[str, dict[str | None, int]] = {}  # the image that each id has in each split
    for image_id, split, image in zip(ids, splits, look, strict=True):
        first.setdefault(image_id, {}).setdefault(split, image)
    shared = {image_id for image_id, images in first.items() if len(set(images.values())) > 1}
    named = zip(ids, splits, strict=True)
    return [f"{split}/{image_id}" if image_id in shared else image_id for image_id, split in named]
