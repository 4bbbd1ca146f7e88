"""Check that a source holds a split of a benchmark: results on a split of another size are not comparable.

Splits are Karpathy's. COCO's `restval` (30,504 images of val2014 that are in neither `val` nor `test`) is a split of
its own; the train split has 82,783 images without it and 113,287 with it. COCO30K is 29,000 of the former.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from repair_hf.runtime.options import UserError


class Size(NamedTuple):
    """The size of a split."""

    images: int
    captions: tuple[int, ...] = ()  # in each published version of the split; empty if unknown


# Karpathy's COCO splits have ten captions more than five an image; some leave these out.
COCO_5K = Size(5_000, (25_010, 25_000))
SIZES: dict[str, dict[str, Size]] = {
    "flickr30k": {
        "train": Size(29_000, (145_000,)),
        "val": Size(1_014, (5_070,)),
        "test": Size(1_000, (5_000,)),
    },
    "coco": {"train": Size(82_783), "train+restval": Size(113_287), "val": COCO_5K, "test": COCO_5K},
    "coco30k": {"train": Size(29_000), "val": COCO_5K, "test": COCO_5K},
}
SEED = 42
SHOWN = 10
_COCO_ID = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d+)(?:\.\w+)?")


def check_name(benchmark: str, split: str, *, with_restval: bool) -> str:
    """Return the benchmark's own name of a split, or raise an error if it has no such split."""
    name = "val" if split == "validation" else split
    name = "train+restval" if name == "train" and with_restval else name
    if name not in SIZES[benchmark]:
        hint = " It is drawn from train without restval." if benchmark == "coco30k" and with_restval else ""
        raise UserError(f"`{benchmark}` has no split `{name}`; it has {list(SIZES[benchmark])}.{hint}")
    return name


@dataclass(frozen=True)
class BenchmarkSplit:
    """A split of a benchmark, and the source that should hold it."""

    benchmark: str  # a key of `SIZES`
    split: str  # as `check_name` returns it
    source: str  # its name in messages

    @property
    def is_drawn(self) -> bool:
        """Whether the split is a part of what a source lists."""
        return (self.benchmark, self.split) == ("coco30k", "train")

    def check_listed(self, images: int, captions: int) -> None:
        """Check the numbers of images and captions that the source lists, before any is drawn or left out."""
        size = SIZES["coco" if self.is_drawn else self.benchmark][self.split]
        listed = f"`{self.source}` lists {images:,} images with {captions:,} captions as {self.split}"
        remedy = "Give Karpathy's splits, or leave out `benchmark` to use the data as they are."
        if images != size.images:
            expected = f"{size.images:,} images"
        elif size.captions and captions not in size.captions:
            expected = f"{' or '.join(f'{n:,}' for n in size.captions)} captions"
        else:
            return
        raise UserError(f"{listed}, but `{self.benchmark}` has {expected} there. {remedy}")

    def check_usable(self, listed: Sequence[str], usable: Sequence[str], empty: int) -> None:
        """Check that all images of the split, by their ids, and all of their captions can be used."""
        there = set(usable)
        missing = [image_id for image_id in listed if image_id not in there]
        if missing or empty:
            shown = ", ".join(map(ascii, missing[:SHOWN])) + ", ..." * (len(missing) > SHOWN)
            raise UserError(
                f"`{self.source}` lacks {len(missing):,} of the {len(listed):,} images of `{self.benchmark}` "
                f"{self.split} ({shown}), and {empty:,} captions of the others. They are missing, empty or cannot be "
                "decoded. Complete them, or leave out `benchmark` to use the rest."
            )

    def items(self, listed: pd.DataFrame) -> pd.DataFrame:
        """Return the images of the split, of those that the source lists.

        Raises:
            UserError: If the split is of another size.
        """
        self.check_listed(len(listed), int(listed["n_captions"].sum()))
        if not self.is_drawn:
            return listed
        return listed[listed["image_id"].isin(draw_coco30k(listed["image_id"].tolist()))]


def draw_coco30k(image_ids: Sequence[str]) -> set[str]:
    """Draw the images of COCO30K from those of Karpathy's train split without restval.

    COCO's numbers (`57870`) and file names (`COCO_train2014_000000057870.jpg`) give the same images.
    """
    numbers = {_coco_number(image_id): image_id for image_id in image_ids}
    drawn = random.Random(SEED).sample(sorted(numbers), SIZES["coco30k"]["train"].images)
    return {numbers[number] for number in drawn}


def _coco_number(image_id: str) -> int:
    found = _COCO_ID.fullmatch(image_id)
    if found is None:
        raise UserError(
            f"COCO30K is drawn by COCO's image ids, and {image_id!r} is none. Give Karpathy's dataset_coco.json, or a "
            "dataset with a column `image_id` (57870) or `filename` (COCO_train2014_000000057870.jpg)."
        )
    return int(found[1])
