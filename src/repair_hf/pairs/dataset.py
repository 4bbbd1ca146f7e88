"""Pairs of images and captions: one form for every source, with what was left out and why.

In:  a folder with captions.jsonl, a caption JSON of COCO or of Karpathy, a dataset of the Hub or of a folder; a split.
Out: `Pairs`: images (encoded, decoded when asked for), captions, and which belong together. All that is wrong with the
     data is found here, before anything costs time.

A source without splits is cut by image: a hash of the image's id puts it into `train` (80%), `validation` or `test`
(10% each), so an image stays where it is when others come or go.
"""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, Image, Value

from repair_hf.pairs import benchmarks
from repair_hf.pairs.annotations import read_annotations
from repair_hf.pairs.images import content_digest, inspect_images, redraw
from repair_hf.pairs.problems import Problem, Problems
from repair_hf.pairs.sources import Listing, fetched_into, read_dataset, read_folder
from repair_hf.runtime.options import PairsOptions, UserError

logger = logging.getLogger(__name__)

_PLAIN_QUOTES = str.maketrans("‘’“”", "''\"\"")
_ENDINGS = " .,;:!?…。．，、；：！？؟،؛۔।"  # of Chinese, Japanese, Arabic, Urdu and Hindi too

COLUMNS = ("image", "caption")  # of a dataset, where no others are named
CAPTIONS = Features({"caption_id": Value("string"), "caption": Value("string"), "image_index": Value("int64")})


@dataclass(frozen=True)
class Pairs:
    """Images, their captions, and who belongs to whom.

    Args:
        images: `image_id` and `image` (upright, RGB).
        captions: `caption_id` (`<image_id>#<place>`), `caption`, and `image_index`, the row of its image.
        problems: What was left out.
    """

    images: Dataset
    captions: Dataset
    problems: tuple[Problem, ...] = ()

    @cached_property
    def caption_image(self) -> np.ndarray:
        """(M,) the row of each caption's image."""
        return np.array(self.captions["image_index"][:], np.int64)

    def captions_of(self, image_index: int) -> list[int]:
        """The rows of an image's captions."""
        order, starts = self._captions_by_image
        return order[starts[image_index] : starts[image_index + 1]].tolist()

    @property
    def fingerprint(self) -> str:
        """Names ids, captions and the images' content as they are now; files go by path, size and time of change."""
        digest = hashlib.sha256(content_digest(self.images).encode())
        columns = [self.images["image_id"], *(self.captions[name] for name in CAPTIONS)]
        for column in columns:
            digest.update(repr(column[:]).encode())
        return digest.hexdigest()[:16]

    @cached_property
    def _captions_by_image(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.caption_image, kind="stable")  # (M,)
        starts = np.searchsorted(self.caption_image[order], np.arange(len(self.images) + 1))
        return order, starts


def load_pairs(
    source: str | Path,
    *,
    split: str = "train",
    image_folder: str | Path | None = None,
    image_column: str = COLUMNS[0],
    caption_column: str = COLUMNS[1],
    strict: bool = False,
    benchmark: str | None = None,
    with_restval: bool = False,
) -> Pairs:
    """Load pairs, and leave out what cannot be used.

    Args:
        source: A folder with `captions.jsonl` (`{"image": "x.png", "captions": ["..."], "split": "train"}` on each
            line, the split optional), a caption JSON of COCO or of Karpathy, a Hub dataset id, or the folder of a dataset.
        split: Which split; `all` takes everything.
        image_folder: Where the images lie that a caption JSON names.
        image_column: Column of a dataset that holds the image.
        caption_column: Column of a dataset that holds the caption or a list of captions.
        strict: Refuse data in which anything is wrong.
        benchmark: What the data are said to be (a key of `benchmarks.SIZES`): a split of another size is refused, and one
            of which images are missing. Of `coco30k`, the training images are drawn from those of COCO.
        with_restval: Count Karpathy's split `restval` as part of `train`.

    Raises:
        UserError: If the source cannot be read, has no such split, is not the benchmark, or nothing usable is left; with
            `strict` for any problem.

    Example:
        >>> pairs = load_pairs("photos", split="all")
        >>> pairs.images[0]["image"], pairs.captions[0]["caption"]
    """
    problems = Problems()
    named = None if benchmark is None else benchmarks.check_name(benchmark, split, with_restval=with_restval)
    wanted = (split, "restval") if with_restval and split == "train" else (split,)
    listing = _read(str(source), problems, wanted, image_folder, image_column, caption_column)
    ids: list[str] = listing.images["image_id"][:]
    needed = wanted if benchmark is None else wanted[:1]  # some have `restval` in `train` already; the size tells
    rows = _of_split(ids, listing.splits, _first_of_each_id(ids, problems), wanted, needed, problems, str(source))
    if benchmark is not None:
        rows = _of_benchmark(benchmark, named, listing, ids, rows, str(source))
    wanted_ids = [ids[row] for row in rows]
    captions = {row: _texts(ids[row], listing.captions[row], problems) for row in rows}
    if benchmark is not None:
        lost = sum(len(listing.captions[row]) - len(captions[row]) for row in rows)
        benchmarks.check_captions(benchmark, named, str(source), lost)
    rows = [row for row in rows if captions[row]]
    images, rows = _whole(listing.images, rows, ids, problems, within=fetched_into(str(source)))
    if benchmark is not None:
        benchmarks.check_whole(benchmark, named, str(source), wanted_ids, [ids[row] for row in rows])
    _tell(problems, str(source), strict, is_empty=not rows)
    pairs = Pairs(
        images.cast_column("image", Image(mode="RGB")),
        _caption_table([ids[row] for row in rows], [captions[row] for row in rows]),
        problems.found(),
    )
    if benchmark is not None:
        logger.info("%s %s: %d images, %d captions.", benchmark, named, len(pairs.images), len(pairs.captions))
    return pairs


def load_wanted(options: PairsOptions, split: str | None = None) -> Pairs:
    """Load the pairs that a command's options name; `split` stands in for the options' own."""
    named = asdict(options) | ({} if split is None else {"split": split})
    return load_pairs(named.pop("pairs"), **named)


def bare_caption(caption: str) -> str:
    """A caption without what does not count: case, spacing, final punctuation, how a letter with an accent is encoded, the form of an
    apostrophe. Captions equal in this say the same."""
    plain = unicodedata.normalize("NFC", caption).translate(_PLAIN_QUOTES).casefold()
    return " ".join(plain.split()).rstrip(_ENDINGS)


def _read(
    source: str,
    problems: Problems,
    splits: Sequence[str],
    image_folder: str | Path | None,
    image_column: str,
    caption_column: str,
) -> Listing:
    path = Path(source)
    is_folder, is_json = (path / "captions.jsonl").is_file(), path.suffix == ".json"
    if image_folder is not None and not is_json:
        raise UserError(f"`image_folder` {image_folder} is for a caption JSON, and `{source}` is none; leave it out.")
    if (is_folder or is_json) and (image_column, caption_column) != COLUMNS:
        raise UserError(
            f"`image_column` {image_column} and `caption_column` {caption_column} are for a dataset, and `{source}` is none; leave them out."
        )
    if is_folder:
        return read_folder(path, problems)
    if is_json:
        if not path.is_file():
            raise UserError(f"`{source}` does not exist; give the path of a caption JSON, COCO's or Karpathy's.")
        if image_folder is None or not Path(image_folder).is_dir():
            raise UserError(
                f"`image_folder` must be the folder of the images that {source} names, got {image_folder}."
            )
        return read_annotations(path, Path(image_folder), problems)
    return read_dataset(source, splits, image_column, caption_column)


def _first_of_each_id(ids: list[str], problems: Problems) -> list[int]:
    seen: set[str] = set()
    rows = []
    for row, image_id in enumerate(ids):
        if image_id in seen:
            problems.add("duplicate_id", image_id)
        else:
            seen.add(image_id)
            rows.append(row)
    return rows


def _of_split(
    ids: list[str],
    splits: list[str | None] | None,
    rows: list[int],
    wanted: Sequence[str],
    needed: Sequence[str],
    problems: Problems,
    source: str,
) -> list[int]:
    if wanted == ("all",) or not rows:
        return rows
    if splits is None:
        splits = [_part(image_id) for image_id in ids]
    for row in rows:
        if splits[row] is None:
            problems.add("no_split", ids[row])
    have = {splits[row] for row in rows} - {None}
    if absent := [name for name in needed if name not in have]:
        raise UserError(
            f"`{source}` has no image in split `{absent[0]}`; it has {sorted(have)}. Name one of these, or `all` to take everything."
        )
    return [row for row in rows if splits[row] in wanted]


def _of_benchmark(
    benchmark: str, split: str, listing: Listing, ids: list[str], rows: list[int], source: str
) -> list[int]:
    if listing.splits is None:
        raise UserError(
            f"`{source}` has no splits, and `{benchmark}` is a split. Give Karpathy's JSON or a dataset with its splits, or leave "
            "out `benchmark`."
        )
    captions = sum(len(listing.captions[row]) for row in rows)
    benchmarks.check_listed(benchmark, split, source, len(rows), captions)
    if not benchmarks.is_drawn(benchmark, split):
        return rows
    drawn = benchmarks.draw_coco30k([ids[row] for row in rows])
    return [row for row in rows if ids[row] in drawn]


def _part(image_id: str) -> str:
    tenth = int.from_bytes(hashlib.sha256(image_id.encode()).digest()[:8]) % 10
    return {8: "validation", 9: "test"}.get(tenth, "train")


def _texts(image_id: str, captions: list, problems: Problems) -> dict[int, str]:
    """The usable captions of an image by their place among all of its captions, without outer white space."""
    texts = {}
    for place, caption in enumerate(captions):
        if isinstance(caption, str) and caption.strip():
            texts[place] = caption.strip()
        else:
            problems.add("empty_caption", f"{image_id}#{place}")
    if not texts:
        problems.add("image_without_captions", image_id)
    return texts


def _whole(
    images: Dataset, rows: list[int], ids: list[str], problems: Problems, *, within: Sequence[Path] | None
) -> tuple[Dataset, list[int]]:
    """The images that can be decoded, and their rows."""
    looks = dict(zip(rows, inspect_images(images.select(rows), within), strict=True))
    for row, look in looks.items():
        if look.problem is not None:
            problems.add(look.problem, ids[row])
    rows = [row for row in rows if looks[row].problem is None]
    images = images.select(rows)
    if transparent := {place for place, row in enumerate(rows) if looks[row].is_transparent}:
        logger.info("%d of %d images are transparent; they are laid on white.", len(transparent), len(rows))
    if deep := {place for place, row in enumerate(rows) if looks[row].is_deep}:
        logger.info("%d of %d images have greys of more than 8 bits; they are scaled to 8.", len(deep), len(rows))
    if transparent or deep:
        images = redraw(images, transparent | deep)
    return images, rows


def _tell(problems: Problems, source: str, strict: bool, is_empty: bool) -> None:
    found = problems.found()
    listed = "; ".join(map(str, found))
    if found and strict:
        raise UserError(f"`{source}` has {listed}. Mend them, or leave out `strict` to go on without them.")
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
