"""Decoded and resized images in a memory-mapped file, which training, mining and evaluation share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub import cached_assets_path
from torch import Tensor

from repair_hf.encoder.preprocessing import Preprocessor, decoding, progress, versions
from repair_hf.pairs.images import content_digest
from repair_hf.runtime.arrays import on_disk
from repair_hf.runtime.options import EmbeddingOptions, UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import digest

IMAGES_AT_ONCE = 64


class Pixels(Protocol):
    """A table of images: maps (n,) ascending rows to a uint8 tensor (n, 3, H, W)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: np.ndarray) -> Tensor: ...


class PixelStore:
    """Every image of a dataset at the encoder's size, in one memory-mapped file, N x 3 x H x W.

    The file's name contains a digest of the images' content and of the processor's settings, so other images or
    another size make another file. All processes of a run must create the store together; they share the work.

    Args:
        images: A dataset.
        column: Its column of images.
        preprocessor: Decides about size and crop.
        cache_folder: Folder of the file; by default in Hugging Face's cache of assets.

    Raises:
        UserError: If an image cannot be decoded, or the disk is too full.

    Example:
        >>> store = PixelStore(pairs.images, "image", preprocessor)
        >>> store[np.array([4, 2])].shape
        torch.Size([2, 3, 224, 224])
    """

    def __init__(
        self,
        images: Dataset,
        column: str,
        preprocessor: Preprocessor,
        cache_folder: str | Path | None = None,
    ) -> None:
        folder = Path(cache_folder or cached_assets_path("repair_hf", "pixels"))
        content = [content_digest(images, column), preprocessor.image_digest, *versions()]
        self.path = folder / f"pixels-{digest(content)}.npy"

        def parts() -> Iterator[tuple[slice, np.ndarray]]:
            share = processes().share(len(images), IMAGES_AT_ONCE)
            start = share.start
            with progress(share, "Decoding images" if processes().is_main else None, " images") as bar:
                for batch in preprocessor.batches(images[column], IMAGES_AT_ONCE, share):
                    yield slice(start, start + len(batch)), batch.numpy()
                    start += len(batch)
                    bar.update(len(batch))

        self._pixels = on_disk(  # (N, 3, H, W)
            self.path,
            (len(images), *preprocessor.image_shape),
            preprocessor.pixel_type,
            parts,
        )

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, rows: np.ndarray | slice) -> Tensor:
        """Return a copy of some rows as a (n, 3, H, W) uint8 tensor."""
        pixels = self._pixels[rows]  # a copy if `rows` is an array
        return torch.from_numpy(np.array(pixels, copy=isinstance(rows, slice) or None))

    def __getstate__(self) -> Path:
        return self.path  # a memory map would be pickled with its content

    def __setstate__(self, path: Path) -> None:
        self.path, self._pixels = path, np.load(path, mmap_mode="r")


class DecodedImages:
    """The images of a dataset, decoded and resized on each access."""

    def __init__(self, images: Dataset, column: str, preprocessor: Preprocessor) -> None:
        self.images, self.column, self.preprocessor = images, column, preprocessor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: np.ndarray) -> Tensor:
        with decoding(f"One of {len(rows)} images of `{self.column}`, row {rows.min()} and later,"):
            return self.preprocessor.images(self.images[rows.tolist()][self.column])


def pixels_of(images: Dataset, column: str, preprocessor: Preprocessor, *, cache_images: bool) -> Pixels:
    """Open a column of images at the encoder's size."""
    return (PixelStore if cache_images else DecodedImages)(images, column, preprocessor)


def pixels_for(images: Dataset, preprocessor: Preprocessor | None, options: EmbeddingOptions) -> PixelStore | None:
    """Return the store of a column `image` if `cache_images` asks for it."""
    if not options.cache_images:
        return None
    if preprocessor is None:
        raise UserError("`cache_images` is for checkpoints of transformers; leave it out for this model.")
    return PixelStore(images, "image", preprocessor)
