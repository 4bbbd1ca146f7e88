"""The pictures of benchmarks: files in folders, or in the test split of a dataset on the Hub or in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
from datasets import Dataset, DatasetDict
from torch import Tensor

from repair_hf.encoder.pixel_store import IMAGES_AT_ONCE
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.pairs.admission import admit_images
from repair_hf.pairs.folders import load_any, loading
from repair_hf.pairs.images import UNDECODABLE, in_rgb, open_image, undecoded
from repair_hf.pairs.problems import Problems
from repair_hf.runtime.options import UserError

Box = tuple[float, float, float, float]  # left, upper, right, lower in pixels
KEPT = 1 << 28  # most bytes of decoded pixels that stay in memory for the next model


def load_test_split(source: str) -> Dataset:
    """Load the split `test`, or the only one, of a dataset on the Hub or in a folder.

    Raises:
        UserError: If the dataset cannot be loaded.
    """
    with loading(source, "If its terms must be accepted, do so on its page, and log in with `hf auth login`."):
        loaded = load_any(source, Problems())
    if isinstance(loaded, DatasetDict):
        if "test" not in loaded and len(loaded) > 1:
            raise UserError(f"`{source}` has the splits {list(loaded)}, and none named test.")
        loaded = loaded["test"] if "test" in loaded else next(iter(loaded.values()))
    return loaded


def columns_of(
    dataset: Dataset, source: str, images: Sequence[str], texts: Sequence[str], others: Sequence[str] = ()
) -> Dataset:
    """Select columns of a dataset, whose images stay undecoded; `others` may be absent.

    Raises:
        UserError: If a needed column is missing.
    """
    lacking = [name for name in (*images, *texts) if name not in dataset.features]
    if lacking:
        raise UserError(f"`{source}` has the columns {dataset.column_names}; it lacks {', '.join(lacking)}.")
    wanted = [name for name in dataset.column_names if name in (*images, *texts, *others)]
    return admit_images(dataset.select_columns(wanted), source, images)


class EncodedImages:
    """The image files in some columns of a dataset, ordered by row, then by column; read on access.

    `chosen` keeps those at some places of this order.
    """

    def __init__(self, rows: Dataset, columns: Sequence[str], chosen: Sequence[int] | None = None) -> None:
        self.columns = [undecoded(rows, name)[name] for name in columns]
        self.chosen = range(len(columns) * len(rows)) if chosen is None else chosen

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, place: int) -> bytes | Path:
        row, column = divmod(self.chosen[place], len(self.columns))
        cell = self.columns[column][row]
        return Path(cell["path"]) if cell["bytes"] is None else cell["bytes"]


class Photographs:
    """Image files, or boxes cut from them, decoded to RGB on access; whole pictures are rotated upright."""

    def __init__(self, sources: Sequence[Path] | EncodedImages, boxes: Sequence[Box | None] | None = None) -> None:
        self.sources, self.boxes = sources, [None] * len(sources) if boxes is None else boxes
        self._kept: dict[str, Tensor] = {}  # by the settings that they were resized with

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, rows: np.ndarray) -> list[PIL.Image.Image]:
        return [self._open(self.sources[int(row)], int(row)) for row in rows]

    def resized(self, preprocessor: Preprocessor | None) -> Tensor | Photographs:
        """Return the pixels at an encoder's size, decoded once for all models; itself where they take too much."""
        if preprocessor is None or len(self) * prod(preprocessor.image_shape) > KEPT:
            return self
        name = preprocessor.image_digest
        if name not in self._kept:
            every = slice(0, len(self))
            self._kept = {name: torch.cat(list(preprocessor.batches(self, IMAGES_AT_ONCE, every)))}
        return self._kept[name]

    def _open(self, source: bytes | Path, row: int) -> PIL.Image.Image:
        try:
            with open_image(source if isinstance(source, bytes) else str(source)) as image:
                box = self.boxes[row]
                if box is None:
                    return in_rgb(PIL.ImageOps.exif_transpose(image))
                left, upper, right, lower = box
                # Some copies of a dataset contain the cut parts, and still the boxes.
                is_cut = abs(image.width - (right - left)) < 1 and abs(image.height - (lower - upper)) < 1
                return in_rgb(image if is_cut else image.crop(box))
        except UNDECODABLE as error:
            name = f"picture {row}" if isinstance(source, bytes) else source
            raise UserError(
                f"{name} of a compositional benchmark cannot be decoded ({error}). Replace the file."
            ) from error
