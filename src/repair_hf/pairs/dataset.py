"""Images and captions from any source in one form, checked before anything else runs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, Image, Value

from repair_hf.pairs.benchmarks import BenchmarkSplit, check_name
from repair_hf.pairs.choosing import draw_images, rows_of_split
from repair_hf.pairs.images import content_digest, inspect_images, redraw
from repair_hf.pairs.merging import merge_rows
from repair_hf.pairs.problems import Problem, Problems
from repair_hf.pairs.reading import COLUMNS, read_listing
from repair_hf.pairs.sources import Columns, Listing
from repair_hf.runtime.options import PairsOptions, UserError, expect

logger = logging.getLogger(__name__)


MAKE_PAIRS = "Pairs, from `load_pairs(PATH)` or `Pairs.from_dataset(DATASET)`"  # for errors
Most = tuple[int | None, int | None]  # images of the split, and captions of each image
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
    """

    images: Dataset
    captions: Dataset
    problems: tuple[Problem, ...] = ()
    looks: tuple[str, ...] = ()
    whole: tuple[int, int] | None = None

    @classmethod
    def from_dataset(
        cls,
        data: Dataset | DatasetDict,
        *,
        image: str = COLUMNS.image,
        caption: str = COLUMNS.caption,
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
        columns: Any = {"image_column": image, "caption_column": caption, "image_id_column": image_id}
        return load_pairs(data, split=split, strict=strict, **columns)

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

    @property
    def fingerprint(self) -> str:
        """A digest of ids, captions and the images' current content; of files, path, size and modification time."""
        digest = hashlib.sha256(content_digest(self.images).encode())
        names = [name for name in ("image_id", "group") if name in self.images.features]
        columns = [*(self.images[name] for name in names), *(self.captions[name] for name in CAPTIONS)]
        for column in columns:
            digest.update(repr(column[:]).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def _captions_by_image(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.caption_image, kind="stable")  # (M,)
        starts = np.searchsorted(self.caption_image[order], np.arange(len(self.images) + 1))
        return order, starts


def load_pairs(
    source: str | Path | Dataset | DatasetDict,
    *,
    split: str = "train",
    image_folder: str | Path | None = None,
    image_column: str = COLUMNS.image,
    caption_column: str = COLUMNS.caption,
    image_id_column: str | None = None,
    group: str | None = None,
    strict: bool = False,
    benchmark: str | None = None,
    with_restval: bool = False,
    max_images: int | None = None,
    max_captions: int | None = None,
    pairs_config: str | None = None,
    pairs_revision: str | None = None,
    private_urls: bool = False,
    stream: bool = False,
) -> Pairs:
    """Load pairs, and leave out what cannot be used.

    Args:
        source: Folder with `captions.jsonl` (keys `image`, `captions`, `split`), table (CSV, TSV, JSONL, Parquet),
            caption JSON of COCO or Karpathy, Hub id, dataset or its folder. Equal image files are one image.
        split: Which split; `all` takes everything.
        image_folder: Folder that the paths of a caption JSON, table or dataset start from. Default: that of the table.
        image_column: Column that holds the image, its path or, in a table, its address (http or https).
        caption_column: Column that holds the caption or a list of captions; or several columns, with commas.
        image_id_column: Column whose rows of one value are one image. Default: `image_id`, `filename`, `cocoid`, `id`.
        group: Column or key whose rows of one value (a product) stay in one split and are no negatives of each other.
        strict: Raise an error if anything is wrong with the data.
        benchmark: A key of `benchmarks.SIZES`; a split that is not the benchmark's, or lacks images, raises an error.
        with_restval: Count Karpathy's split `restval` as part of `train`.
        max_images: Most images of the split; a fixed draw. All by default.
        max_captions: Most captions of an image: the first ones. All by default.
        pairs_config: Configuration of a dataset of the Hub.
        pairs_revision: Its branch, tag or commit.
        private_urls: Download images of a table from addresses of this machine and of private networks too.
        stream: Stream a dataset of the Hub into the cache, split by split; an interrupted stream is resumed.

    Raises:
        UserError: If the source cannot be read, has no such split, is not the benchmark, or has nothing usable.
        RunStopped: If a stream breaks off.

    Example:
        >>> load_pairs("photos", split="all").captions[0]["caption"]
    """
    named, of_hub = (image_column, caption_column, image_id_column, group), (pairs_config, pairs_revision)
    columns = Columns(*named, None if image_folder is None else Path(image_folder), *of_hub, private_urls, stream)
    return _load(source, columns, split, strict, benchmark, with_restval, (max_images, max_captions))


def load_wanted(options: PairsOptions, split: str | None = None) -> Pairs:
    """Load the pairs that a command's options name; `split` overrides theirs."""
    named = asdict(options) | ({} if split is None else {"split": split})
    return load_pairs(named.pop("pairs"), **named)


def _load(
    given: Any, columns: Columns, split: str, strict: bool, benchmark: str | None, with_restval: bool, most: Most
) -> Pairs:
    (source, data), problems, expected = _named(given), Problems(), None
    if benchmark is not None:
        expected = BenchmarkSplit(benchmark, check_name(benchmark, split, with_restval=with_restval), source)
    wanted = (split, "restval") if with_restval and split == "train" else (split,)
    listing = read_listing(source, problems, wanted, columns, data)
    listing = merge_rows(listing, source, by_id_alone=expected is not None)
    all_ids: list[str] = listing.images["image_id"][:]
    rows = rows_of_split(listing, all_ids, wanted, expected, problems, source)
    whole = (len(rows), sum(len(listing.captions[row]) for row in rows)) if any(most) else None
    rows = draw_images(rows, all_ids, most[0])
    ids, images, captions, looks = _admitted(listing, rows, all_ids, most[1], expected, problems)
    _report(problems, source, strict, is_empty=not ids)
    table = _caption_table(ids, captions)
    if expected is not None:
        logger.info("%s %s: %d images, %d captions.", benchmark, expected.split, len(images), len(table))
    return Pairs(images.cast_column("image", Image(mode="RGB")), table, problems.found(), looks, whole)


def _named(source: Any) -> tuple[str, Dataset | DatasetDict | None]:
    """Return the name of a source for messages, and the dataset if it is one in memory."""
    given = "a folder, a Hub id, a Dataset or a DatasetDict (not streamed)"
    expect(source, (str, Path, Dataset, DatasetDict), "source", given)
    is_data = isinstance(source, Dataset | DatasetDict)
    return (f"the {type(source).__name__}", source) if is_data else (str(source), None)


def _admitted(
    listing: Listing,
    rows: Sequence[int],
    ids: list[str],
    most_captions: int | None,
    expected: BenchmarkSplit | None,
    problems: Problems,
) -> tuple[list[str], Dataset, list[dict[int, str]], tuple[str, ...]]:
    """Return the ids, images, captions and looks of what can be used of some rows."""
    captions = {row: _texts(ids[row], listing.captions[row], problems) for row in rows}
    if expected is not None:
        expected.check_captions(sum(len(listing.captions[row]) - len(captions[row]) for row in rows))
    images, usable, looks = _decodable(listing, [row for row in rows if captions[row]], ids, problems)
    if expected is not None:
        expected.check_images([ids[row] for row in rows], [ids[row] for row in usable])
    return [ids[row] for row in usable], images, [_first(captions[row], most_captions) for row in usable], looks


def _texts(image_id: str, captions: list[Any], problems: Problems) -> dict[int, str]:
    """Return the usable captions of an image by their place among all of its captions, stripped."""
    texts = {}
    for place, caption in enumerate(captions):
        if isinstance(caption, str) and caption.strip():
            texts[place] = caption.strip()
        else:
            problems.add("empty_caption", f"{image_id}#{place}")
    if not texts:
        problems.add("image_without_captions", image_id)
    return texts


def _first(texts: dict[int, str], most: int | None) -> dict[int, str]:
    return dict(list(texts.items())[:most])


def _decodable(
    listing: Listing, rows: list[int], ids: list[str], problems: Problems
) -> tuple[Dataset, list[int], tuple[str, ...]]:
    """Return the images that can be decoded, their rows and their looks."""
    looks = dict(zip(rows, inspect_images(listing.images.select(rows), listing.folders), strict=True))
    for row, look in looks.items():
        if look.problem is not None:
            problems.add(look.problem, ids[row])
    rows = [row for row in rows if looks[row].problem is None]
    images = listing.images.select(rows)
    if transparent := {place for place, row in enumerate(rows) if looks[row].is_transparent}:
        logger.info("%d of %d images are transparent; they get a white background.", len(transparent), len(rows))
    if deep := {place for place, row in enumerate(rows) if looks[row].is_deep}:
        logger.info("%d of %d images have grey values of over 8 bits; they are scaled to 8.", len(deep), len(rows))
    if transparent or deep:
        images = redraw(images, transparent | deep)
    return images, rows, tuple(looks[row].look for row in rows)


def _report(problems: Problems, source: str, strict: bool, is_empty: bool) -> None:
    found = problems.found()
    listed = "; ".join(map(str, found))
    if found and strict:
        raise UserError(f"`{source}` has {listed}. Repair them, or leave out `strict` to skip them.")
    if is_empty:
        raise UserError(f"`{source}` holds no usable image with a caption: {listed or 'it is empty'}.")
    for problem in found:
        logger.warning("%s: left out %s.", source, problem)


def _caption_table(image_ids: list[str], captions: list[dict[int, str]]) -> Dataset:
    named = [
        (f"{image_id}#{place}", caption, index)
        for index, (image_id, texts) in enumerate(zip(image_ids, captions, strict=True))
        for place, caption in texts.items()
    ]
    return Dataset.from_dict(dict(zip(CAPTIONS, zip(*named, strict=True), strict=True)), features=CAPTIONS)
