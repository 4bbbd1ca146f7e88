"""Images and captions from any source in one form, checked before anything else runs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, Features, Image, Value, concatenate_datasets

from repair_hf.pairs.benchmarks import BenchmarkSplit, check_name
from repair_hf.pairs.images import Inspection, content_digest, inspect_images, redraw
from repair_hf.pairs.problems import Problem, Problems
from repair_hf.pairs.rows import draw_images, items_of_split, merge_rows
from repair_hf.pairs.sources import read_source
from repair_hf.pairs.tables import in_memory
from repair_hf.runtime.items import Items, digest_each
from repair_hf.runtime.options import IN_MEMORY, PairsOptions, UserError, expect
from repair_hf.runtime.stage import refuse_unfinished

logger = logging.getLogger(__name__)

DATASET = f"a dataset {IN_MEMORY}"  # in messages
MAKE_PAIRS = "Pairs, from `load_pairs(PATH)` or `Pairs.from_dataset(DATASET)`"  # for errors
CAPTIONS = Features({"caption_id": Value("string"), "caption": Value("string"), "image_index": Value("int64")})


@dataclass(frozen=True)
class Pairs:
    """Images, their captions, and which caption describes which image.

    Args:
        images: `image_id` and `image` (upright, RGB); `group` if the source names groups.
        captions: `caption_id` (`<image_id>#<place>`), `caption`, and `image_index`, the row of its image.
        problems: What was left out.
        looks: Digest of each image for `images.equal_pixels`; empty if unknown.
        whole: Images and captions of the split, of which these were drawn; None if they are all.
        source: Where and how they were loaded, for the record of a stage.
    """

    images: Dataset
    captions: Dataset
    problems: tuple[Problem, ...] = ()
    looks: tuple[str, ...] = ()
    whole: tuple[int, int] | None = None
    source: PairsOptions = field(default_factory=lambda: PairsOptions(DATASET, split="all"))

    @classmethod
    def from_dataset(
        cls,
        data: Dataset | DatasetDict,
        *,
        image: str = PairsOptions.image_column,
        caption: str = PairsOptions.caption_column,
        image_id: str | None = None,
        split: str = "all",
        strict: bool = False,
    ) -> Pairs:
        """Take the pairs of a dataset in memory: by default all of its rows; see `load_pairs` for the arguments.

        Raises:
            UserError: As `load_pairs`.

        Example:
            >>> ds = load_dataset("imagefolder", data_dir="photos")
            >>> pairs = Pairs.from_dataset(ds["train"], caption="captions")
        """
        expect(data, (Dataset, DatasetDict), "data", "a Dataset or a DatasetDict; `load_pairs` takes a path or Hub id")
        columns = {"image_column": image, "caption_column": caption, "image_id_column": image_id}
        try:
            return load_pairs(data, split=split, strict=strict, **columns)
        except UserError as error:
            error.args = (str(error).replace("_column`", "`"),)  # the names of this function
            raise

    def __len__(self) -> int:
        """Return the number of captions."""
        return len(self.captions)

    @cached_property
    def caption_image(self) -> np.ndarray:
        """The row of each caption's image, (M,)."""
        return np.array(self.captions["image_index"][:], np.int64)

    @cached_property
    def groups(self) -> np.ndarray | None:
        """The number of each image's group, (N,); None without groups."""
        if "group" not in self.images.features:
            return None
        return np.unique(self.images["group"][:], return_inverse=True)[1]

    def captions_of(self, image_index: int) -> list[int]:
        """Return the rows of an image's captions."""
        order, starts = self._captions_by_image
        return order[starts[image_index] : starts[image_index + 1]].tolist()

    @cached_property
    def fingerprint(self) -> str:
        """A digest of ids, groups, captions and pixels: equal for equal data in any folder, on any machine."""
        content = hashlib.sha256()
        names = [name for name in ("image_id", "group") if name in self.images.features]
        for column in (*(self.images[name] for name in names), self.captions["caption_id"]):
            content.update(digest_each(column[:]).tobytes())
        for kind in ("image", "caption"):
            content.update(self.items.digests[kind].tobytes())
        if not self.looks:
            content.update(content_digest(self.images).encode())
        return content.hexdigest()[:16]

    @cached_property
    def items(self) -> Items:
        """A digest of each image, if its look is known, and of each caption with its image."""
        names = self.images["image_id"][:]
        ids = {"image": names if self.looks else [], "caption": self.captions.with_format("arrow")["caption_id"][:]}
        blocks = self.captions.select_columns(["caption"]).iter(1024)
        captions = (caption for block in blocks for caption in block["caption"])
        texts = (f"{names[image]} {caption}" for caption, image in zip(captions, self.caption_image, strict=True))
        return Items(ids, {"image": digest_each(self.looks), "caption": digest_each(texts)})

    @cached_property
    def _captions_by_image(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.caption_image, kind="stable")  # (M,)
        starts = np.searchsorted(self.caption_image[order], np.arange(len(self.images) + 1))
        return order, starts


def load_pairs(source: str | Path | Dataset | DatasetDict, **options: Any) -> Pairs:
    """Load pairs, and leave out what cannot be used.

    Args:
        source: Folder with `captions.jsonl` (keys `image`, `captions`, `split`), table (CSV, TSV, JSONL, Parquet),
            caption JSON of COCO or Karpathy, Hub id, dataset or its folder. Equal image files are one image.
        options: `split` (default: `train`; `all` takes everything), `image_folder`, `caption_column` and the other
            options that `repair-hf mine --help-all` lists under *pairs*, by the names of their flags.

    Raises:
        UserError: If the source cannot be read, has no such split, is not the benchmark, or has nothing usable.

    Example:
        >>> load_pairs("photos", split="all").captions[0]["caption"]
    """
    right = "a folder, a Hub id, a Dataset or a DatasetDict (not streamed)"
    expect(source, (str, Path, Dataset, DatasetDict), "source", right)
    known = {each.name for each in fields(PairsOptions)} - {"pairs"}
    if unknown := sorted(set(options) - known):
        raise UserError(f"`load_pairs` has no option {unknown}; it takes {sorted(known)}.")
    data = source if isinstance(source, Dataset | DatasetDict) else None
    name = str(source) if data is None else f"the {type(source).__name__}"
    return _load(PairsOptions(name, **options), data)


def load_wanted(options: PairsOptions, split: str | None = None) -> Pairs:
    """Load the pairs that a command's options name; `split` overrides theirs."""
    wanted, loaded = options if split is None else replace(options, split=split), _loaded.get()
    if loaded is None:
        return _load(wanted, None)
    if (name := repr(wanted)) not in loaded:
        loaded[name] = _load(wanted, None)
    return loaded[name]


_loaded: ContextVar[dict[str, Pairs] | None] = ContextVar("_loaded", default=None)


@contextmanager
def loading_once() -> Iterator[None]:
    """Let commands that follow each other load equal pairs once; no other program may change the files meanwhile."""
    before = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(before)


def _load(options: PairsOptions, data: Dataset | DatasetDict | None) -> Pairs:
    """Load the pairs of a source, or of `data`, a dataset in memory that `options.pairs` names in messages."""
    split, problems, expected = options.split, Problems(), None
    if data is None:
        refuse_unfinished(options.pairs)
    if options.benchmark is not None:
        name = check_name(options.benchmark, split, with_restval=options.with_restval)
        expected = BenchmarkSplit(options.benchmark, name, options.pairs)
    splits = (split, "restval") if options.with_restval and split == "train" else (split,)
    images, rows, captions = read_source(options, data, splits, problems)
    items, captions = merge_rows(images, rows, captions, options, problems)
    items = items_of_split(items, splits, problems, options)
    if expected is not None:
        items = expected.items(items)
    whole = None
    if options.max_images is not None or options.max_captions is not None:
        whole = len(items), int(items["n_captions"].sum())
    if options.max_images is not None:
        items = draw_images(items, options.max_images)
    listed = items["image_id"].tolist()
    items, captions, looks = _usable(images, items, captions, problems)
    if expected is not None:
        expected.check_usable(listed, items["image_id"].tolist(), captions["caption"].null_count)
        logger.info("%s %s: %d images, %d captions.", expected.benchmark, expected.split, len(items), len(captions))
    problems.report(options.pairs, is_empty=items.empty, is_strict=options.strict)
    known = options if data is None else replace(options, pairs=DATASET)
    return Pairs(
        _image_table(images, items, looks),
        _caption_table(items, captions, options.max_captions),
        problems.found(),
        tuple(each.look for each in looks),
        whole,
        known,
    )


def _usable(
    images: Dataset, items: pd.DataFrame, captions: pa.Table, problems: Problems
) -> tuple[pd.DataFrame, pa.Table, list[Inspection]]:
    """Return the images that can be decoded and have a caption, their captions, and what was found out about them."""
    ids = items.set_index("item")["image_id"]
    wanted = captions.append_column("is_empty", captions["caption"].is_null()).drop_columns("caption")
    wanted = wanted.filter(pc.is_in(wanted["item"], pa.array(items["item"])))
    for caption in wanted.filter(wanted["is_empty"]).to_pylist():
        problems.add("empty_caption", f"{ids[caption['item']]}#{caption['place']}")
    is_described = items["item"].isin(wanted["item"].filter(pc.invert(wanted["is_empty"])).to_numpy())
    for image_id in items["image_id"][~is_described]:
        problems.add("image_without_captions", image_id)
    items = items[is_described]
    inspections = inspect_images(images.select(items["image"]))
    for image, image_id, found in zip(items["image"], items["image_id"], inspections, strict=True):
        if found.problem is not None:
            path = (images[image]["image"] or {}).get("path") or ""
            problems.add(found.problem, image_id if path.endswith(image_id) or not path else f"{image_id}: {path}")
    is_good = np.array([found.problem is None for found in inspections], bool)
    items = items[is_good]
    captions = captions.filter(pc.is_in(captions["item"], pa.array(items["item"])))
    return items, captions, [found for found in inspections if found.problem is None]


def _image_table(images: Dataset, items: pd.DataFrame, looks: Sequence[Inspection]) -> Dataset:
    """Return the images of some items; those that are transparent or deeper than 8 bits are drawn in plain RGB."""
    places = items["image"].to_numpy(copy=True)
    changed = np.flatnonzero([look.is_transparent or look.is_deep for look in looks])
    if len(changed):
        logger.info(
            "%d of %d images are transparent or have more than 8 bits; they are drawn in plain RGB, on white.",
            len(changed),
            len(items),
        )
        drawn = redraw(images.select(places[changed]))
        places[changed] = len(images) + np.arange(len(changed))
        images = concatenate_datasets([images, drawn])
    for name in ("image_id", "group"):
        if name in items:
            column = np.full(len(images), "", object)  # in full length: a selection would be copied
            column[places] = items[name]
            images = images.add_column(name, column.tolist())
    return images.select(places).cast_column("image", Image(mode="RGB"))


def _caption_table(items: pd.DataFrame, captions: pa.Table, most: int | None) -> Dataset:
    """Return the captions of some items that are not empty, at most the first so many of each."""
    captions = captions.filter(captions["caption"].is_valid())
    index = pc.index_in(captions["item"], value_set=pa.array(items["item"])).cast(pa.int64())
    ids = pa.array(items["image_id"], pa.string()).take(index)
    ids = pc.binary_join_element_wise(ids, captions["place"].cast(pa.string()), "#")
    table = pa.table([ids, captions["caption"], index], schema=CAPTIONS.arrow_schema)
    if most is not None:
        number = np.arange(len(table)) - np.searchsorted(index, index)  # among the captions of its image
        table = table.filter(pa.array(number < most))
    return in_memory(table)
