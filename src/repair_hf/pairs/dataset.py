"""Images and captions from any source in one form, checked before anything else runs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, DatasetInfo, Features, Image, Value, concatenate_datasets
from huggingface_hub import cached_assets_path

from repair_hf.pairs.benchmarks import BenchmarkSplit, check_name
from repair_hf.pairs.choosing import draw_images, merge_rows, rows_of_split
from repair_hf.pairs.images import Inspection, content_digest, inspect_images, redraw
from repair_hf.pairs.problems import Problem, Problems
from repair_hf.pairs.rows import Listing, Row
from repair_hf.pairs.sources import read_listing
from repair_hf.pairs.tables import in_memory
from repair_hf.runtime.items import Items, digest_each
from repair_hf.runtime.options import IN_MEMORY, PairsOptions, UserError, expect
from repair_hf.runtime.run_folder import digest
from repair_hf.runtime.stage import refuse_unfinished

logger = logging.getLogger(__name__)

DATASET = f"a dataset {IN_MEMORY}"  # in messages
MAKE_PAIRS = "Pairs, from `load_pairs(PATH)` or `Pairs.from_dataset(DATASET)`"  # for errors
CAPTIONS_AT_ONCE = 100_000  # as values of Python
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
    source, split, problems, expected = options.pairs, options.split, Problems(), None
    if data is None:
        refuse_unfinished(source)
    if options.benchmark is not None:
        name = check_name(options.benchmark, split, with_restval=options.with_restval)
        expected = BenchmarkSplit(options.benchmark, name, source)
    splits = (split, "restval") if options.with_restval and split == "train" else (split,)
    listing = read_listing(options, data, splits, problems)
    listing = merge_rows(listing, source, problems, by_id_alone=expected is not None)
    rows = rows_of_split(listing, splits, expected, problems, source)
    is_part = options.max_images is not None or options.max_captions is not None
    whole = (len(rows), sum(len(row.captions) for row in rows)) if is_part else None
    rows, looks = _usable(listing, draw_images(rows, options.max_images), expected, problems)
    _report(problems, options, is_empty=not rows)
    images, captions = _image_table(listing, rows, looks, options), _caption_table(rows, options.max_captions)
    if expected is not None:
        logger.info("%s %s: %d images, %d captions.", expected.benchmark, expected.split, len(images), len(captions))
    known = options if data is None else replace(options, pairs=DATASET)
    return Pairs(images, captions, problems.found(), tuple(each.look for each in looks), whole, known)


def _usable(
    listing: Listing, wanted: list[Row], expected: BenchmarkSplit | None, problems: Problems
) -> tuple[list[Row], list[Inspection]]:
    """Return the rows with an image and a caption that can be used, and what was found out about their images."""
    rows = []
    for row in wanted:
        captions = [text.strip() or None if isinstance(text, str) else None for text in row.captions]
        for place, caption in enumerate(captions):
            if caption is None:
                problems.add("empty_caption", f"{row.image_id}#{place}")
        if any(captions):
            rows.append(row._replace(captions=captions))  # None in the place of one that cannot be used
        else:
            problems.add("image_without_captions", row.image_id)
    found = inspect_images(listing.images.select([row.image for row in rows]))
    for row, each in zip(rows, found, strict=True):
        if each.problem is not None:
            path = (listing.images[row.image]["image"] or {}).get("path") or ""
            problems.add(
                each.problem, row.image_id if path.endswith(row.image_id) or not path else f"{row.image_id}: {path}"
            )
    usable = [(row, each) for row, each in zip(rows, found, strict=True) if each.problem is None]
    if expected is not None:
        expected.check_usable(wanted, [row for row, _ in usable])
    return [row for row, _ in usable], [each for _, each in usable]


def _report(problems: Problems, options: PairsOptions, *, is_empty: bool) -> None:
    found, source = problems.found(), options.pairs
    listed = "; ".join(map(str, found))
    if found and options.strict:
        raise UserError(f"`{source}` has {listed}. Repair them, or leave out `strict` to skip them.")
    if is_empty:
        raise UserError(f"`{source}` holds no usable image with a caption: {listed or 'it is empty'}.")
    lines = [*problems.warnings, *(f"Left out {problem}." for problem in found)]
    if len(lines) > 1:  # they are said in full the first time
        mark = cached_assets_path("repair_hf", "warned") / digest([source, *lines])
        if mark.exists():
            lines = [f"{lines[0]} {len(lines) - 1} more warnings as before."]
        mark.touch()
    for line in lines:
        logger.warning("%s: %s", source, line)


def _image_table(listing: Listing, rows: list[Row], looks: Sequence[Inspection], options: PairsOptions) -> Dataset:
    """Return the images of some rows; those that are transparent or deeper than 8 bits are drawn in plain RGB."""
    images, places = listing.images, [row.image for row in rows]
    if images._indices is not None:  # a selection, which `add_column` would copy; seen with datasets 5.2
        places = images._indices.column(0).to_numpy()[places].tolist()
        images = Dataset(images.data, DatasetInfo(features=images.features), fingerprint=images._fingerprint)
    if changed := [place for place, look in enumerate(looks) if look.is_transparent or look.is_deep]:
        logger.info(
            "%d of %d images are transparent or have more than 8 bits; they are drawn in plain RGB, on white.",
            len(changed),
            len(rows),
        )
        drawn = redraw(images.select([places[place] for place in changed]))
        for number, place in enumerate(changed, len(images)):
            places[place] = number
        images = concatenate_datasets([images, drawn])
    columns = {"image_id": [row.image_id for row in rows]}
    if options.group is not None:
        columns["group"] = [row.group or row.image_id for row in rows]
    for name, values in columns.items():  # in full length
        of_place = dict(zip(places, values, strict=True))
        images = images.add_column(name, [of_place.get(place, "") for place in range(len(images))])
    images = images.select(places).select_columns(["image_id", "image", *list(columns)[1:]])
    return images.cast_column("image", Image(mode="RGB"))


def _caption_table(rows: Sequence[Row], most: int | None) -> Dataset:
    """Return the captions of some rows, at most the first so many of each."""
    captions = (
        (f"{row.image_id}#{place}", text, index)
        for index, row in enumerate(rows)
        for place, text in islice(((place, text) for place, text in enumerate(row.captions) if text), most)
    )
    schema, blocks = CAPTIONS.arrow_schema, []
    while block := list(islice(captions, CAPTIONS_AT_ONCE)):
        blocks.append(pa.table(list(map(list, zip(*block, strict=True))), schema=schema))
    return in_memory(pa.concat_tables([schema.empty_table(), *blocks]))
