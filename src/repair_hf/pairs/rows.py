"""From rows to images: merge the rows of one photograph, and choose the images of a split or a draw.

Many datasets have a row per caption, so that a photograph stands in several rows.

A source without splits is split by a hash of the image's id: 80% `train`, 10% `validation` and 10% `test`. A draw
takes the images whose ids have the smallest hashes. So an image keeps its place when others are added or removed.

Tables of images are in the order of `item`, their number. `image` is a row in the source's images; other columns are
`image_id` and, if the source has them, `split` and `group`.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
from datasets import Dataset
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from repair_hf.pairs.images import ABSENT, equal_cells, inspect_images
from repair_hf.pairs.problems import Problems, quoted
from repair_hf.pairs.sources import MAYBE_IDS, folder_of, name_in
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.options import PairsOptions, UserError

logger = logging.getLogger(__name__)

AT_ONCE = 100_000  # captions copied together: a column of strings has pieces of less than 2 GB
SAME = {"val": "validation", "validation": "val"}  # Karpathy's name of the split, and that of `datasets`
PARTS = ("train", "validation", "test")  # of a source without splits


def merge_rows(
    images: Dataset, rows: pd.DataFrame, captions: pa.Table, options: PairsOptions, problems: Problems
) -> tuple[pd.DataFrame, pa.Table]:
    """Make one image of the rows of a source with one id, one image file or files of equal bytes.

    The first of them gives id, image and split; all of them give captions. Rows of one id whose images differ get ids
    of their own. Groups that share an image become one. Some photographs of COCO stand in it under two ids, and the
    sizes of benchmarks count both; so for a benchmark only the id counts.

    Returns:
        The images, with the number of their captions, `n_captions`; and these, with the columns `item`, `place` and
        `caption`.

    Raises:
        UserError: If the source puts images of one group into several splits.
    """
    listed, of_row = np.unique(rows["image"], return_inverse=True)
    rows["cell"] = np.array(equal_cells(images.select(listed)), np.int64)[of_row]
    rows["image_id"] = _image_ids(rows, options)
    rows = rows[~rows["is_lost"]].copy()  # only now: ids do not depend on which addresses answer
    if rows["name"].str.contains("://", regex=False).any():
        rows = _without_placeholders(rows, captions, problems)
    if (rows.groupby("image_id")["cell"].nunique() > 1).any():
        rows = _with_own_ids(rows, images, problems)
    if options.benchmark is None:
        rows["image_id"] = rows.groupby("cell")["image_id"].transform("first")
    rows["item"] = pd.factorize(rows["image_id"])[0]
    if "group" in rows and not rows.empty:
        names = rows["group"].where(rows["group"].notna(), rows["image_id"])
        rows["group"] = names.groupby(joined(rows["item"].to_numpy(), pd.factorize(names)[0])).transform("first")
    items = rows.drop_duplicates("item")
    if "split" in rows:
        _check_splits(rows, items, options.pairs, problems)
    if len(items) < len(rows):
        named = options.pairs, f"{len(rows):,}", f"{len(items):,}"
        logger.info("%s: merged %s rows into %s images; each keeps all of its captions.", *named)
    captions = _captions_of_items(rows, captions)
    counts = np.bincount(captions["item"].to_numpy(), minlength=len(items))
    return items.assign(n_captions=counts), captions


def _captions_of_items(rows: pd.DataFrame, captions: pa.Table) -> pa.Table:
    """Sort captions by item, then by row. Those of rows that were left out are left out."""
    row = captions["row"].to_numpy()
    item = rows["item"].reindex(row, fill_value=-1).to_numpy()
    order = np.lexsort((row, item))
    order = order[np.searchsorted(item[order], 0) :]
    item = item[order]
    place = np.arange(len(item)) - np.searchsorted(item, item)
    texts: list[pa.Array] = []
    for start in range(0, len(order), AT_ONCE):
        texts += captions["caption"].take(pa.array(order[start : start + AT_ONCE])).cast(pa.string()).chunks
    return pa.table({"item": item, "place": place, "caption": pa.chunked_array(texts, pa.string())})


def _image_ids(rows: pd.DataFrame, options: PairsOptions) -> np.ndarray:
    """Return the id of each row's image, (N,): that of a column, or else its own name.

    A column of `MAYBE_IDS` counts if its values repeat with the image, and the names of files in cells if each image
    has one of its own.
    """
    names = rows["name"]
    if "file" in rows and rows["file"].notna().all() and _is_one_to_one(rows, "file"):
        names = rows["file"]
    columns = [name for name in ("image_id", *MAYBE_IDS) if name in rows]
    for name in columns:
        if name == "image_id" or rows[name].duplicated().any() and _is_one_to_one(rows, name):
            names = rows[name].where(rows[name].notna(), names)
            break
    code, ids = pd.factorize(names)
    folder = folder_of(options)
    return np.array([name_in(folder, name) if os.path.isabs(name) else name for name in ids], object)[code]


def _is_one_to_one(rows: pd.DataFrame, name: str) -> bool:
    """Return whether each image has a name of its own."""
    both = rows[[name, "cell"]].drop_duplicates()
    return not both[name].duplicated().any() and not both["cell"].duplicated().any()


def _without_placeholders(rows: pd.DataFrame, captions: pa.Table, problems: Problems) -> pd.DataFrame:
    """Leave out addresses that give one picture for different captions: it may say that theirs is gone."""
    images = rows.drop_duplicates("image")
    images = images[images["name"].str.contains("://", regex=False)]
    images = images[images["cell"].duplicated(keep=False)]
    texts = captions.to_pandas().dropna().join(rows[["image", "cell"]], on="row", how="inner")
    texts = texts[texts["image"].isin(images["image"])]
    wordings = texts["caption"].map(bare_caption).groupby([texts["cell"], texts["image"]]).agg(frozenset)
    n_wordings = wordings.groupby("cell").nunique()
    lost = images[images["cell"].isin(n_wordings.index[n_wordings > 1])]
    for name in lost["name"]:
        problems.add("placeholder_image", name)
    return rows[~rows["image"].isin(lost["image"])]


def _with_own_ids(rows: pd.DataFrame, images: Dataset, problems: Problems) -> pd.DataFrame:
    """Give images that share an id, but not their pixels, ids of their own: by split or, in one split, by pixels."""
    shared = rows.drop_duplicates(["image_id", "cell"])
    shared = shared[shared["image_id"].duplicated(keep=False)]
    first = shared.drop_duplicates("cell")
    looks = [each.look for each in inspect_images(images.select(first["image"]))]
    # a cell without an image may belong to any image of its id, a file that cannot be read to none
    pixels = {cell: look or f"{cell:08d}" for cell, look in zip(first["cell"], looks, strict=True) if look != ABSENT}
    shared = shared.assign(pixels=shared["cell"].map(pixels)).dropna(subset="pixels")
    several = set(shared["image_id"][shared.groupby("image_id")["pixels"].transform("nunique") > 1])
    if not several:
        return rows
    own = rows[rows["image_id"].isin(several) & rows["cell"].isin(pixels)]
    first_look: dict[str, str] = {}  # of each new id
    new_ids: list[str] = []
    splits = own["split"] if "split" in own else [None] * len(own)
    for old_id, split, cell in zip(own["image_id"], splits, own["cell"], strict=True):
        new_id = old_id if pd.isna(split) else f"{split}/{old_id}"
        if first_look.setdefault(new_id, pixels[cell]) != pixels[cell]:
            new_id = f"{new_id}~{pixels[cell][-8:]}"
        new_ids.append(new_id)
    example = min(several)
    names = list(dict.fromkeys(new for new, old in zip(new_ids, own["image_id"], strict=True) if old == example))
    problems.warnings.append(
        f"Ids that name several images: {len(several):,}, such as {quoted(example)} for {len(names):,} images, "
        f"which are kept apart as {', '.join(map(quoted, names[:3]))}{', ...' * (len(names) > 3)}. Set "
        "`image_id_column` to a column with one value per image."
    )
    ids = rows["image_id"].copy()
    ids[own.index] = new_ids
    return rows.assign(image_id=ids)


def _check_splits(rows: pd.DataFrame, items: pd.DataFrame, source: str, problems: Problems) -> None:
    """Warn of images in several splits, and raise an error for groups in several splits."""
    if images := _in_several_splits(rows, "image_id"):
        name, splits = images[0]
        problems.warnings.append(
            f"{len(images):,} images stand in several splits, such as {quoted(name)} in {' and '.join(splits)}. Each "
            "is kept only in that of its first row."
        )
    if "group" in items and (groups := _in_several_splits(items, "group")):
        name, splits = groups[0]
        raise UserError(
            f"`{source}` has {len(groups):,} groups in several splits, such as `{name}` in {splits}. Put each group "
            "into one split, or leave out `group`."
        )


def _in_several_splits(rows: pd.DataFrame, column: str) -> list[tuple[str, list[str]]]:
    """Return the names in a column whose rows stand in several splits, with these."""
    both = rows[[column, "split"]].fillna({"split": "no split"}).drop_duplicates()
    both = both[both[column].duplicated(keep=False)]
    return [(str(name), sorted(splits)) for name, splits in both.groupby(column, sort=False)["split"]]


def joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Number items, (N,): those that share a number in either of two numberings share one."""
    return connected(one, one.max() + 1 + other)[one]


def connected(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Number the nodes of a graph with these edges, (E,), by the part that they belong to."""
    size = int(max(one.max(), other.max())) + 1
    edges = coo_array((np.ones(len(one), bool), (one, other)), shape=(size, size))
    return connected_components(edges, directed=False)[1]


def items_of_split(
    items: pd.DataFrame, wanted: Sequence[str], problems: Problems, options: PairsOptions
) -> pd.DataFrame:
    """Return the images of some splits, or all for `all`. Without splits they are split by a hash of their ids.

    Raises:
        UserError: If there is no image in one of the splits.
    """
    if wanted == ("all",) or items.empty:
        return items
    has_splits = "split" in items and items["split"].notna().any()
    have = set(items["split"].dropna()) if has_splits else set(PARTS)
    wanted = [SAME[name] if name not in have and SAME.get(name) in have else name for name in wanted]
    if not has_splits and options.benchmark is not None:
        raise UserError(
            f"`{options.pairs}` has no splits, but `{options.benchmark}` needs one. Give Karpathy's JSON or a "
            "dataset with its splits, or leave out `benchmark`."
        )
    if not has_splits:
        items = _with_parts(items, wanted[0], problems)
    for name in items["image_id"][items["split"].isna()]:
        problems.add("no_split", name)
    have = set(items["split"].dropna())
    needed = wanted if options.benchmark is None else wanted[:1]  # some benchmarks have `restval` in `train` already
    if absent := [name for name in needed if name not in have]:
        raise UserError(
            f"`{options.pairs}` has no image in split `{absent[0]}`; it has {sorted(have)}. "
            "Choose one of these, or `all` to take everything."
        )
    return items[items["split"].isin(wanted)]


def _with_parts(items: pd.DataFrame, wanted: str, problems: Problems) -> pd.DataFrame:
    """Split images by a hash of their ids, or of their groups, and say so."""
    names = items["group" if "group" in items else "image_id"]
    parts = [{8: "validation", 9: "test"}.get(int.from_bytes(_hash(name)) % 10, "train") for name in names]
    counts = Counter(parts)
    problems.warnings.append(
        f"No splits are named (`train` alone counts as none): {counts[wanted]:,} of {len(items):,} images are used. "
        f"Split by image: {' / '.join(f'{counts[part]:,}' for part in PARTS)} ({' / '.join(PARTS)}). --split all uses "
        "all images."
    )
    return items.assign(split=parts)


def draw_images(items: pd.DataFrame, most: int) -> pd.DataFrame:
    """Draw at most so many images and keep their order. A larger draw contains every smaller one."""
    hashes = [_hash(f"drawn {image_id}") for image_id in items["image_id"]]
    drawn = sorted(range(len(items)), key=hashes.__getitem__)[:most]
    return items.iloc[sorted(drawn)]


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:8]
