"""The common form of compositional benchmarks: pictures, true captions, and captions that are almost true.

`Cases` holds which pictures and captions each case compares, how to score them, and the metrics. Each distinct picture
and caption is stored, and embedded, once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path, PurePath

import numpy as np
import PIL.Image
import PIL.ImageOps

from repair_hf.evaluation.hub import EncodedImages
from repair_hf.pairs.images import UNDECODABLE, in_rgb, open_image
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest

Box = tuple[float, float, float, float]  # left, upper, right, lower in pixels
SHOWN = 3  # examples in a message

# Maps (n, a, b) cosines of pictures with captions and (n, b, b) of captions with captions to (n,) margins per measure.
Judge = Callable[[np.ndarray, np.ndarray | None], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Metric:
    """An accuracy over the cases of a benchmark."""

    name: str  # its key is `{benchmark}_{name}`
    measure: str  # the key of the judge's margins
    groups: tuple[str, ...] | None = None  # the groups of cases to include; None for all
    weights: tuple[float, ...] | None = None  # of the groups' accuracies in their mean; None pools the cases (micro)
    ties_right: bool = False


@dataclass(frozen=True)
class Cases:
    """The cases of one benchmark."""

    benchmark: str  # prefix of the metrics' keys; ends in `_subset` if cases are missing
    pictures: Photographs | None  # None for the images of the evaluated pairs, in their order
    captions: list[str]  # the distinct captions
    picture: np.ndarray  # (n, a) rows of `pictures`
    caption: np.ndarray  # (n, b) rows of `captions`
    case_ids: list[str]  # (n,) unique names
    picture_ids: list[str]  # (n,) the picture with which a case is drawn in a resample
    groups: list[str]  # (n,) category, relation, seed, or whatever the metrics distinguish
    judge: Judge  # computes the margins; a case is right if its margin is above 0
    metrics: tuple[Metric, ...]
    counts: Mapping[str, int] = field(default_factory=dict)  # further counts for `metrics.json`
    compares_captions: bool = False  # whether the judge needs the captions' cosines with one another

    def __len__(self) -> int:
        return len(self.case_ids)

    @property
    def fingerprint(self) -> str:
        """Digest of the cases. It covers the order of the pictures, but not their pixels."""
        rows = (self.picture.tolist(), self.caption.tolist())
        return digest([self.benchmark, self.captions, self.case_ids, self.picture_ids, self.groups, *rows])


def first_is_right(scores: np.ndarray, _: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return the margin of the first caption, the true one, over the best of the others; for one picture per case."""
    return {"accuracy": scores[:, 0, 0] - scores[:, 0, 1:].max(1)}


def micro_and_macro(groups: Sequence[str], measure: str = "accuracy") -> tuple[Metric, ...]:
    """Return each group's accuracy, their mean, and that of all cases; names end in the measure, if not `accuracy`."""
    suffix = "" if measure == "accuracy" else f"_{measure}"
    each = tuple(Metric(f"{group}{suffix}", measure, (group,)) for group in groups)
    return (*each, macro(f"macro{suffix}", groups, measure), Metric(f"micro{suffix}", measure))


def macro(name: str, groups: Sequence[str], measure: str = "accuracy") -> Metric:
    """Return the unweighted mean of the groups' accuracies."""
    return Metric(name, measure, tuple(groups), (1 / len(groups),) * len(groups))


def numbered(texts: Sequence[Sequence[str]]) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts, and the (n, b) texts as rows of these."""
    rows: dict[str, int] = {}
    found = np.array([[rows.setdefault(text, len(rows)) for text in case] for case in texts], np.int64)
    return list(rows), found


class Photographs:
    """Image files, or boxes cut from them, decoded to RGB on access; whole pictures are rotated upright."""

    def __init__(self, sources: Sequence[Path] | EncodedImages, boxes: Sequence[Box] | None = None) -> None:
        self.sources, self.boxes = sources, boxes

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, rows: np.ndarray) -> list[PIL.Image.Image]:
        return [self._open(self.sources[int(row)], int(row)) for row in rows]

    def _open(self, source: bytes | Path, row: int) -> PIL.Image.Image:
        try:
            return self._decoded(source, row)
        except UNDECODABLE as error:
            name = f"picture {row}" if isinstance(source, bytes) else source
            raise UserError(
                f"{name} of a compositional benchmark cannot be decoded ({error}). Replace it, or remove the file and "
                "evaluate the other cases with --compositional-subset."
            ) from error

    def _decoded(self, source: bytes | Path, row: int) -> PIL.Image.Image:
        with open_image(source if isinstance(source, bytes) else str(source)) as image:
            if self.boxes is None:
                return in_rgb(PIL.ImageOps.exif_transpose(image))
            left, upper, right, lower = self.boxes[row]
            # Some copies of a dataset contain the cut parts, and still the boxes.
            is_cut = abs(image.width - (right - left)) < 1 and abs(image.height - (lower - upper)) < 1
            return in_rgb(image if is_cut else image.crop((left, upper, right, lower)))


def find_photographs(names: Sequence[str], folders: Sequence[Path]) -> dict[str, Path]:
    """Map the names that are found to paths: in one of the folders, by the relative name or by its last part."""
    found: dict[str, Path] = {}
    for name in dict.fromkeys(names):
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts:  # a data file must not name files outside the folders
            continue
        for folder, part in product(folders, (name, path.name)):
            if os.path.isfile(folder / part):  # no error for any name
                found.setdefault(name, folder / part)
    return found


def whole_or_subset(benchmark: str, *, found: int, published: int, missing: Sequence[str], subset: bool) -> str:
    """Return the name under which to report the cases that were found: the benchmark's, or `{benchmark}_subset`.

    Raises:
        UserError: If cases are missing, and the user did not ask for a subset.
    """
    if found == published and not missing:
        return benchmark
    if subset and found:
        return f"{benchmark}_subset"
    examples = ", ".join(ascii(name) for name in missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
    lacking = f"; {len(missing):,} photographs are missing ({examples})" if missing else ""
    remedy = "name their folder by --compositional-images" if missing else "take the benchmark's own files"
    part = f", or evaluate what is there as `{benchmark}_subset` by --compositional-subset" if found else ""
    raise UserError(
        f"`{benchmark}` has {published:,} cases, and {found:,} can be evaluated here{lacking}: {remedy}{part}."
    )
