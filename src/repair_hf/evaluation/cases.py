"""What a compositional benchmark asks: pictures, captions that are right of them, and captions that almost are.

In:  nothing; the benchmarks' own files fill this form.
Out: `Cases`: which pictures and captions each case sets against each other, by how much the right ones win, and which numbers are
     made of that. A picture or a caption that occurs in many cases is there, and is embedded, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import PIL.Image
import PIL.ImageOps

from repair_hf.pairs.images import UNDECODABLE, in_rgb, open_image
from repair_hf.pairs.sources import is_outside
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest

Box = tuple[float, float, float, float]  # left, upper, right, lower in pixels
SHOWN = 3  # examples in a message

# (n, a, b) cosines of a case's pictures with its captions, (n, b, b) of its captions with one another -> measure -> (n,) margins
Judge = Callable[[np.ndarray, np.ndarray | None], dict[str, np.ndarray]]


class Pictures(Protocol):
    """Pictures by row, decoded when asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> list[PIL.Image.Image]: ...


class Files(Protocol):
    """Image files by row: a path, or their bytes. A list of these is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int) -> Path | bytes: ...


@dataclass(frozen=True)
class Metric:
    """A number made of a measure's cases.

    Args:
        name: Of the number; `{benchmark}_{name}` is its key.
        measure: A key of what the judge gives.
        groups: Which groups of cases take part; None for all.
        weights: Of each of `groups`: the number is their accuracies' weighted mean ("macro" where they are equal). None pools the
            cases, whatever their group ("micro").
        ties_right: Whether a tie counts as right. In all other numbers it counts as wrong.
    """

    name: str
    measure: str
    groups: tuple[str, ...] | None = None
    weights: tuple[float, ...] | None = None
    ties_right: bool = False


@dataclass(frozen=True)
class Cases:
    """The cases of one benchmark.

    Args:
        benchmark: Its name, as it stands in the metrics' keys; another one where it is not all of that benchmark.
        pictures: None where they are the images of the pairs that are evaluated, in their order.
        captions: Each once.
        picture: (n, a) rows of `pictures`, of each case.
        caption: (n, b) rows of `captions`.
        case_ids: (n,) unique.
        picture_ids: (n,) the picture that a case is drawn with in a resample.
        groups: (n,) category, relation, seed, ...: whatever the metrics tell apart.
        judge: By how much what is right wins; a case is right where that is above 0.
        metrics: What is made of it.
        counts: What else must be known: whole numbers for `metrics.json`.
        compares_captions: Whether the judge wants the captions' cosines with one another.
    """

    benchmark: str
    pictures: Pictures | None
    captions: list[str]
    picture: np.ndarray
    caption: np.ndarray
    case_ids: list[str]
    picture_ids: list[str]
    groups: list[str]
    judge: Judge
    metrics: tuple[Metric, ...]
    counts: Mapping[str, int] = field(default_factory=dict)
    compares_captions: bool = False

    def __len__(self) -> int:
        return len(self.case_ids)

    @property
    def fingerprint(self) -> str:
        """Names what is asked. Of the pictures only their places count: a benchmark's photographs do not change."""
        rows = (self.picture.tolist(), self.caption.tolist())
        return digest([self.benchmark, self.captions, self.case_ids, self.picture_ids, self.groups, *rows])


def first_is_right(scores: np.ndarray, _: np.ndarray | None) -> dict[str, np.ndarray]:
    """One picture; the first caption is right, the others are wrong: by how much it beats the best of them."""
    return {"accuracy": scores[:, 0, 0] - scores[:, 0, 1:].max(1)}


def micro_and_macro(groups: Sequence[str], measure: str = "accuracy") -> tuple[Metric, ...]:
    """Each group's accuracy, their mean, and that of all cases; under the measure's name where it is not the only one."""
    suffix = "" if measure == "accuracy" else f"_{measure}"
    each = tuple(Metric(f"{group}{suffix}", measure, (group,)) for group in groups)
    return (*each, macro(f"macro{suffix}", groups, measure), Metric(f"micro{suffix}", measure))


def macro(name: str, groups: Sequence[str], measure: str = "accuracy") -> Metric:
    """The mean of the groups' accuracies, each of equal weight."""
    return Metric(name, measure, tuple(groups), (1 / len(groups),) * len(groups))


def numbered(texts: Sequence[Sequence[str]]) -> tuple[list[str], np.ndarray]:
    """(n, b) texts as a list that holds each once, and (n, b) rows of it."""
    rows: dict[str, int] = {}
    found = np.array([[rows.setdefault(text, len(rows)) for text in case] for case in texts], np.int64)
    return list(rows), found


class Photographs:
    """Image files, or parts of them, decoded when asked for; RGB.

    Args:
        sources: Path, or bytes, of each.
        boxes: The part of each that is shown, or None for the whole picture, upright.
    """

    def __init__(self, sources: Files, boxes: Sequence[Box] | None = None) -> None:
        self.sources, self.boxes = sources, boxes

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, rows: np.ndarray) -> list[PIL.Image.Image]:
        return [self._open(int(row)) for row in rows]

    def _open(self, row: int) -> PIL.Image.Image:
        source = self.sources[row]
        try:
            return self._decoded(source, row)
        except UNDECODABLE as error:
            name = f"picture {row}" if isinstance(source, bytes) else source
            raise UserError(
                f"{name} of a compositional benchmark cannot be decoded ({error}). Replace it, or take the file away and evaluate what is "
                "there by --compositional-subset."
            ) from error

    def _decoded(self, source: bytes | Path, row: int) -> PIL.Image.Image:
        with open_image(source if isinstance(source, bytes) else str(source)) as image:
            if self.boxes is None:
                return in_rgb(PIL.ImageOps.exif_transpose(image))
            left, upper, right, lower = self.boxes[row]
            # Some copies of a data set hold the parts themselves, with the boxes that they were cut by.
            is_cut = abs(image.width - (right - left)) < 1 and abs(image.height - (lower - upper)) < 1
            return in_rgb(image if is_cut else image.crop((left, upper, right, lower)))


def find_photographs(names: Sequence[str], folders: Sequence[Path]) -> dict[str, Path]:
    """Where the files lie that a benchmark names: in one of the folders, by their whole relative name or by its last part.

    Returns:
        Name -> path, of those that were found.
    """
    found = {}
    for name in dict.fromkeys(names):
        if is_outside(name):  # a data file must not pick files of this machine
            continue
        places = (folder / part for folder in folders for part in (name, Path(name).name))
        if (path := next((place for place in places if place.is_file()), None)) is not None:
            found[name] = path
    return found


def whole_or_subset(benchmark: str, *, found: int, published: int, missing: Sequence[str], subset: bool) -> str:
    """The name under which the cases that were found may be reported.

    Args:
        benchmark: The published name.
        found: How many cases there are whose photographs are there.
        published: How many the benchmark has.
        missing: Photographs that lack.
        subset: Whether the user takes a part.

    Raises:
        UserError: If it is not the whole benchmark, and the user did not ask for a part.
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
