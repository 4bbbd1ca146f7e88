"""Turn images and captions into unit vectors of one space: what mining, evaluation and synthesis ask of a retriever.

Vectors of whole datasets are computed by all processes of a run. They can be stored under a digest of the retriever
and the data, so a fine-tuned model never reuses its parent's vectors.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import cached_assets_path

from repair_hf.encoder.preprocessing import Preprocessor, cuts_of, progress, versions
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.images import content_digest
from repair_hf.runtime.arrays import Parts, in_memory, on_disk
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import digest

CAPTIONS_AT_ONCE = 4096  # tokenized and sorted by length together
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TextParts = Iterator[tuple[slice, np.ndarray]]  # rows of distinct texts, and their vectors
# Keys of a configuration; the first one was seen with transformers 5.23.
NOT_OF_THE_WEIGHTS = ("_name_or_path", "transformers_version", "architectures", "dtype")


class Embedder(ABC):
    """Base of the retrievers. A subclass embeds a share of images or texts, and names what its vectors depend on.

    Raises:
        UserError: If `precision` is fp16 without a GPU.
    """

    model: Any
    preprocessor: Preprocessor | None = None  # without one there is no `PixelStore`
    libraries: tuple[str, ...] = ()  # beside transformers, whose versions change vectors

    def __init__(self, device: str | torch.device | None, batch_size: int, precision: str) -> None:
        self.device = processes().device if device is None else torch.device(device)
        if precision == "fp16" and self.device.type == "cpu":
            raise UserError("`precision` fp16 needs a GPU; use bf16 or fp32.")
        self.batch_size, self.precision = batch_size, precision

    @property
    @abstractmethod
    def digest(self) -> str:
        """A digest of all that decides the vectors."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """The Hub id or folder of the weights; empty if unknown."""

    @abstractmethod
    def report_captions(self, captions: Sequence[str]) -> int:
        """Count the captions that are truncated, and log a warning if there are any."""

    @abstractmethod
    def _image_vectors(self, images: Any, share: slice) -> Iterator[torch.Tensor]:
        """Yield the vectors of a share of the images in order, (n, D) of any length."""

    @abstractmethod
    def _text_vectors(self, texts: list[str]) -> torch.Tensor:
        """Return the vectors of texts, (n, D) of any length."""

    @property
    def name(self) -> str:
        """The Hub id, or the last part of the folder, and after an @ the digest; records name their retriever so."""
        is_folder = Path(self.origin).is_dir()
        return f"{Path(self.origin).name if is_folder else self.origin}@{self.digest}"

    def is_named(self, name: str) -> bool:
        """Return whether a name of a retriever is this one's: by its digest, or of a model on the Hub by its id."""
        model, _, digest = name.rpartition("@")
        return digest == self.digest or (model == self.origin and not Path(model).exists())

    @cached_property
    def dim(self) -> int:
        """Length of a vector."""
        return self.embed_texts(["a"]).shape[1]

    def embed_images(self, images: Any, *, desc: str | None = None, ids: Sequence[str] | None = None) -> np.ndarray:
        """Embed images.

        Args:
            images: A list of images, a column of a dataset, a `PixelStore`, or a (N, 3, H, W) uint8 tensor.
            desc: Title of the progress bar; none without it.
            ids: Names of the images in error messages; by default their row numbers.

        Shape:
            Returns (N, D) float32, unit length.

        Raises:
            UserError: If an image cannot be decoded, or its vector is zero or not finite.
        """
        return _joined(self._embed_images(images, slice(0, len(images)), desc, ids))

    def embed_texts(self, captions: Sequence[str], *, desc: str | None = None) -> np.ndarray:
        """Embed captions. Each distinct text is embedded once, so equal texts have equal vectors.

        Shape:
            Returns (M, D) float32, unit length.

        Raises:
            UserError: If a caption's vector is zero or not finite.
        """
        texts, places = _distinct(captions)
        return _joined(self._embed_texts(texts, slice(0, len(texts)), desc))[places]

    def embed_pairs(
        self, pairs: Pairs, *, pixels: Any = None, cache_folder: str | Path | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Embed the images and captions of pairs. Each process embeds its share, and gets the whole.

        Shares are cut between batches of images, and between `CAPTIONS_AT_ONCE` distinct captions, so each batch is
        the same as in one process.

        Args:
            pairs: The pairs.
            pixels: Their images, if they are decoded already.
            cache_folder: Where vectors are stored memory-mapped, and reused for the same weights, processor and items;
                None stores nothing. Commands use `vectors_folder()`.

        Shape:
            Returns (N, D) and (M, D) float32, unit length. From a folder they are read-only.
        """
        everyone = processes()
        images = pairs.images["image"] if pixels is None else pixels
        captions = pairs.captions["caption"]
        texts, places = _distinct(captions)
        titles = ("Embedding images", "Embedding captions") if everyone.is_main else (None, None)

        def image_parts() -> Parts:
            share = everyone.share(len(images), self.batch_size)
            return self._embed_images(images, share, titles[0], pairs.images["image_id"])

        def text_parts() -> Parts:
            share = everyone.share(len(texts), CAPTIONS_AT_ONCE)
            return _rows_of_captions(self._embed_texts(texts, share, titles[1]), places)

        shapes = (len(images), self.dim), (len(captions), self.dim)
        if cache_folder is None:
            return in_memory(shapes[0], np.float32, image_parts()), in_memory(shapes[1], np.float32, text_parts())
        captions_digest = hashlib.sha256(repr(captions[:]).encode()).hexdigest()
        encoder = [self.digest, self.precision, *versions(*self.libraries)]
        image_file, caption_file = (
            Path(cache_folder) / f"{kind}-{digest([*encoder, content])}.npy"
            for kind, content in (("images", content_digest(pairs.images)), ("captions", captions_digest))
        )
        return (
            on_disk(image_file, shapes[0], np.float32, image_parts),
            on_disk(caption_file, shapes[1], np.float32, text_parts),
        )

    def _embed_images(self, images: Any, share: slice, desc: str | None, ids: Sequence[str] | None) -> Parts:
        start = share.start
        with progress(share, desc, " images") as bar:
            for vectors in self._image_vectors(images, share):
                rows = slice(start, start + len(vectors))
                names = range(rows.start, rows.stop) if ids is None else ids[rows]
                yield rows, unit(vectors, [f"image {name}" for name in names])
                bar.update(len(vectors))
                start = rows.stop

    def _embed_texts(self, texts: list[str], share: slice, desc: str | None) -> TextParts:
        with progress(share, desc, " captions") as bar:
            for start, stop in cuts_of(share.start, share.stop, CAPTIONS_AT_ONCE):
                vectors = self._text_vectors(texts[start:stop])
                yield slice(start, stop), unit(vectors, [f"caption {text!r}" for text in texts[start:stop]])
                bar.update(stop - start)

    @contextmanager
    def _autocast(self) -> Iterator[None]:
        dtype = PRECISIONS[self.precision]
        with torch.inference_mode(), torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
            yield


def vectors_folder() -> Path:
    """Return the folder of Hugging Face's assets cache where all commands keep vectors."""
    return cached_assets_path("repair_hf", "vectors")


def _distinct(captions: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts in order of appearance, and each caption's place among them, (M,)."""
    places: dict[str, int] = {}
    where = np.array([places.setdefault(caption, len(places)) for caption in captions[:]], np.int64)
    return list(places), where


def _rows_of_captions(parts: TextParts, places: np.ndarray) -> Parts:
    """Convert rows of distinct texts to rows of captions."""
    order = np.argsort(places, kind="stable")
    for rows, vectors in parts:
        first, stop = np.searchsorted(places, (rows.start, rows.stop), sorter=order)
        captions = np.sort(order[first:stop])
        yield captions, vectors[places[captions] - rows.start]


def _joined(parts: Parts) -> np.ndarray:
    vectors = [values for _, values in parts]
    if not vectors:
        raise UserError("There is nothing to embed; give at least one image or caption.")
    return np.concatenate(vectors)


def unit(vectors: torch.Tensor, names: Sequence[str]) -> np.ndarray:
    """Normalize vectors (n, D), and raise an error with the name of one that cannot be."""
    norms = vectors.norm(dim=1, keepdim=True)
    broken = (~(torch.isfinite(norms) & (norms > 0))).squeeze(1).nonzero()
    if len(broken):
        first = int(broken[0])
        raise UserError(
            f"{len(broken)} of {len(vectors)} vectors are zero or not finite, first for {names[first]}. "
            "The model's weights may be broken; check its training run."
        )
    return (vectors / norms).numpy()


def model_digest(settings: Any, configs: Iterable[dict[str, Any]], weights: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Digest settings, configurations and weights; it stays the same when a model is saved and loaded."""
    content = hashlib.sha256(digest([settings, *map(_without_names, configs)]).encode())
    for name, tensor in weights:
        content.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)};".encode())
        content.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()[:16]


def _without_names(config: dict[str, Any]) -> dict[str, Any]:
    """Drop from a configuration what changes when the same weights are saved and loaded."""
    return {
        key: _without_names(value) if isinstance(value, dict) else repr(value)
        for key, value in config.items()
        if key not in NOT_OF_THE_WEIGHTS
    }


def check_retriever(encoder: Embedder, made_with: Iterable[str | None], what: str) -> None:
    """Check that an encoder is among the retrievers that `what` was made with.

    Args:
        encoder: The retriever.
        made_with: Names as `Embedder.name` gives them; None is an unknown one, which may be any.
        what: For the error, such as "The records of runs/records".

    Raises:
        UserError: If it is not.
    """
    names = set(made_with)
    if names and not any(name is None or encoder.is_named(name) for name in names):
        raise UserError(
            f"{what} were made with {', '.join(sorted(map(str, names)))}, and --model is {encoder.name}. Give the "
            "same model, or add --any-model to continue with this one."
        )
