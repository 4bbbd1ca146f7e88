"""Benchmarks by name. A split of another size is another benchmark, and a number measured on it is not comparable.

In:  a benchmark's name, a split of it, and what a source holds for it.
Out: nothing where the sizes are right, a refusal otherwise; for COCO30K the images that are drawn.

Splits are Karpathy's. COCO's `restval` (30,504 images of val2014 that are in neither `val` nor `test`) is a split of its own; its train
split has 82,783 images without and 113,287 with it. COCO30K is 29,000 of the former.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from repair_hf.runtime.options import UserError


class Size(NamedTuple):
    """How large a split is.

    Args:
        images: How many.
        captions: How many, in each of the forms in which the split goes about; empty where it is not known.
    """

    images: int
    captions: tuple[int, ...] = ()


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
    """The benchmark's own name of a split.

    Raises:
        UserError: If it has no such split.
    """
    name = "val" if split == "validation" else split
    name = "train+restval" if name == "train" and with_restval else name
    if name not in SIZES[benchmark]:
        hint = " It is drawn from train without restval." if benchmark == "coco30k" and with_restval else ""
        raise UserError(f"`{benchmark}` has no split `{name}`; it has {list(SIZES[benchmark])}.{hint}")
    return name


def check_listed(benchmark: str, split: str, source: str, images: int, captions: int) -> None:
    """Refuse a source that lists another number of images or captions.

    Args:
        benchmark: Its name.
        split: As `check_name` gives it.
        source: For the message.
        images: How many it lists, before any is drawn or left out.
        captions: How many these have.
    """
    size = SIZES["coco" if is_drawn(benchmark, split) else benchmark][split]
    told = f"`{source}` lists {images:,} images with {captions:,} captions as {split}, and so is not `{benchmark}`"
    remedy = "Give Karpathy's splits, or leave out `benchmark` to use the data under no name."
    if images != size.images:
        raise UserError(f"{told}: that has {size.images:,} images there. {remedy}")
    if size.captions and captions not in size.captions:
        raise UserError(f"{told}: that has {' or '.join(f'{n:,}' for n in size.captions)} captions there. {remedy}")


def check_captions(benchmark: str, split: str, source: str, lost: int) -> None:
    """Refuse a split of which captions cannot be used.

    Args:
        benchmark: Its name.
        split: As `check_name` gives it.
        source: For the message.
        lost: How many captions are empty, or no text.
    """
    if lost:
        raise UserError(
            f"`{source}` has {lost:,} captions of `{benchmark}` {split} that are empty or no text, and all of them count there. Mend them, "
            "or leave out `benchmark` to use the rest under no name."
        )


def check_whole(benchmark: str, split: str, source: str, wanted: Sequence[str], found: Sequence[str]) -> None:
    """Refuse a split of which images are missing, or cannot be used.

    Args:
        benchmark: Its name.
        split: As `check_name` gives it.
        source: For the message.
        wanted: Ids of its images.
        found: Ids of those that can be used.
    """
    there = set(found)
    if lacking := [image_id for image_id in wanted if image_id not in there]:
        shown = ", ".join(ascii(image_id) for image_id in lacking[:SHOWN])
        more = ", ..." if len(lacking) > SHOWN else ""
        raise UserError(
            f"`{source}` lacks {len(lacking):,} of the {len(wanted):,} images of `{benchmark}` {split}, missing or not to be used: "
            f"{shown}{more}. Complete `image_folder`, or leave out `benchmark` to use the rest under no name."
        )


def is_drawn(benchmark: str, split: str) -> bool:
    """Whether the split is a part of what a source lists."""
    return (benchmark, split) == ("coco30k", "train")


def draw_coco30k(image_ids: Sequence[str]) -> set[str]:
    """The images of COCO30K, of those of Karpathy's train split without restval.

    Args:
        image_ids: COCO's numbers (`57870`) or its file names (`COCO_train2014_000000057870.jpg`); both give the same images.

    Raises:
        UserError: If an id is neither.
    """
    numbers = {_coco_number(image_id): image_id for image_id in image_ids}
    return {
        numbers[number] for number in random.Random(SEED).sample(sorted(numbers), SIZES["coco30k"]["train"].images)
    }


def _coco_number(image_id: str) -> int:
    found = _COCO_ID.fullmatch(image_id)
    if found is None:
        raise UserError(
            f"COCO30K is drawn by COCO's image ids, and {image_id!r} is none. Give Karpathy's dataset_coco.json, or a dataset with "
            "a column `image_id` (57870) or `filename` (COCO_train2014_000000057870.jpg)."
        )
    return int(found[1])
