"""Embed images and captions with a CLIP- or SigLIP-like model of `transformers`.

Vectors of whole datasets are computed by all processes of a run. They can be stored under a digest of the weights and
the data, so a fine-tuned model never reuses its parent's vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from repair_hf.encoder.models import load_model
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.arrays import Parts, in_memory, on_disk
from repair_hf.runtime.options import UserError, expect
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import digest

CAPTIONS_AT_ONCE = 4096  # tokenized and sorted by length together
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
A_MODEL = "a CLIPModel, a SiglipModel or another dual encoder of transformers"
TextParts = Iterator[tuple[slice, np.ndarray]]  # rows of distinct texts, and their vectors
NOT_OF_THE_WEIGHTS = ("_name_or_path", "transformers_version", "architectures", "dtype")


class DualEncoder:
    """A dual encoder: maps images and captions to unit vectors of one space.

    Args:
        model: Any dual encoder of `transformers` with `get_image_features` and `get_text_features`.
        preprocessor: The model's processor, as transformers' `AutoProcessor` loads it, or a `Preprocessor`.
        device: Where to run; by default this process's accelerator, or the CPU.
        batch_size: Images or captions encoded at once.
        precision: Precision of the matrix products (autocast): `fp32`, `bf16`, or `fp16`, which needs a GPU. Weights
            and vectors are float32.

    Raises:
        UserError: If an argument is of a wrong type, or batch size or precision is not valid.

    Example:
        >>> encoder = DualEncoder.from_pretrained("openai/clip-vit-base-patch32")
        >>> images, texts = encoder.embed_pairs(pairs)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        preprocessor: Preprocessor | ProcessorMixin,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 256,
        precision: str = "fp32",
    ) -> None:
        expect(model, PreTrainedModel, "model", f"{A_MODEL}; `DualEncoder.from_pretrained` takes an id or a folder")
        if isinstance(preprocessor, ProcessorMixin):
            preprocessor = Preprocessor(preprocessor, model.config)
        expect(
            preprocessor, Preprocessor, "preprocessor", "the model's processor: `CLIPProcessor.from_pretrained(ID)`"
        )
        if batch_size < 1:
            raise UserError(f"`batch_size` must be at least 1, got {batch_size}.")
        if precision not in PRECISIONS:
            raise UserError(f"`precision` takes {', '.join(PRECISIONS)}, got {precision}.")
        self.device = processes().device if device is None else torch.device(device)
        if precision == "fp16" and self.device.type == "cpu":
            raise UserError("`precision` fp16 needs a GPU; use bf16 or fp32.")
        self.model, self.preprocessor = model.to(self.device), preprocessor  # type: ignore[arg-type]
        self.batch_size, self.precision = batch_size, precision

    @classmethod
    def from_pretrained(
        cls,
        id_or_folder: str | Path,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 256,
        precision: str = "fp32",
        revision: str | None = None,
        dtype: str | torch.dtype = torch.float32,
        attn_implementation: str | None = None,
    ) -> DualEncoder:
        """Load model and processor from the Hub or a folder, or a shipped one such as `world/base`.

        Args:
            id_or_folder: A model, or an adapter of peft, which is merged into its base.
            device: Where to run, as for the class.
            batch_size: Images or captions encoded at once.
            precision: Precision of the matrix products.
            revision: Branch, tag or commit on the Hub.
            dtype: Type of the weights, such as `bfloat16`.
            attn_implementation: Attention of transformers, such as `eager` or `sdpa`; its own choice by default.

        Raises:
            UserError: If there is no such model, it is not a dual encoder, or its weights, tokenizer or processor are
                missing or damaged.
        """
        expect(id_or_folder, (str, Path), "id_or_folder", "a Hub id or a folder; a model goes to `DualEncoder(...)`")
        model = load_model(id_or_folder, revision=revision, dtype=dtype, attn_implementation=attn_implementation)
        preprocessor = Preprocessor.from_pretrained(id_or_folder, revision)
        return cls(model, preprocessor, device=device, batch_size=batch_size, precision=precision)

    @property
    def digest(self) -> str:
        """A digest of the current weights, the configuration and the processor."""
        found = hashlib.sha256(digest([_settled(self.model.config.to_dict()), self.preprocessor.digest]).encode())
        for name, tensor in self.model.state_dict().items():
            found.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)};".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return found.hexdigest()[:16]

    @property
    def name(self) -> str:
        """The Hub id, or the last part of the folder, and after an @ the digest; records name their retriever so."""
        name = self.model.name_or_path
        return f"{Path(name).name if Path(name).is_dir() else name}@{self.digest}"

    @cached_property
    def dim(self) -> int:
        """Length of a vector."""
        with self._inference():
            tokens = self.preprocessor.texts(["a"])
            inputs = self.preprocessor.text_inputs(tokens, torch.zeros(1, dtype=torch.long))
            return self._text_features(inputs).shape[1]

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
            cache_folder: Where vectors are stored memory-mapped, and reused for the same weights, data and decoding;
                None stores nothing.

        Shape:
            Returns (N, D) and (M, D) float32, unit length. From a folder they are read-only.
        """
        everyone = processes()
        images = pairs.images["image"] if pixels is None else pixels
        texts, places = _distinct(pairs.captions["caption"])
        titles = ("Embedding images", "Embedding captions") if everyone.is_main else (None, None)

        def of_images() -> Parts:
            share = everyone.share(len(images), self.batch_size)
            return self._embed_images(images, share, titles[0], pairs.images["image_id"])

        def of_texts() -> Parts:
            found = self._embed_texts(texts, everyone.share(len(texts), CAPTIONS_AT_ONCE), titles[1])
            return _spread(found, places)

        shapes = (len(images), self.dim), (len(places), self.dim)
        if cache_folder is None:
            return in_memory(shapes[0], np.float32, of_images()), in_memory(shapes[1], np.float32, of_texts())
        data, folder = [self.digest, self.precision, pairs.fingerprint], Path(cache_folder)
        drafted = [pixels.draft] if isinstance(pixels, PixelStore) and pixels.draft else []
        files = folder / f"images-{digest(data + drafted)}.npy", folder / f"texts-{digest(data)}.npy"
        keep: dict[str, Any] = {"dtype": np.float32, "remedy": "free some space, or choose another --output"}
        return (
            on_disk(files[0], shapes[0], parts=of_images, what="The images' vectors", **keep),
            on_disk(files[1], shapes[1], parts=of_texts, what="The captions' vectors", **keep),
        )

    def _embed_images(self, images: Any, share: slice, desc: str | None, ids: Sequence[str] | None) -> Parts:
        start = share.start
        for pixels in self.preprocessor.batches(images, self.batch_size, desc, share):  # (B, 3, H, W)
            with self._inference():
                values = self.preprocessor.normalize(pixels.to(self.device)).to(self.model.dtype)
                features = self.model.get_image_features(pixel_values=values).pooler_output.float().cpu()
            rows = slice(start, start + len(pixels))
            names = range(rows.start, rows.stop) if ids is None else ids[rows]
            yield rows, _unit(features, [f"image {name}" for name in names])
            start = rows.stop

    def _embed_texts(self, texts: list[str], share: slice, desc: str | None) -> TextParts:
        """Embed in order of length, so that little padding is encoded; yield in the order of the texts."""
        total = share.stop - share.start
        with tqdm(total=total, desc=desc, unit=" captions", delay=1, disable=None if desc else True) as bar:
            for start in range(share.start, share.stop, CAPTIONS_AT_ONCE):
                some = texts[start : min(start + CAPTIONS_AT_ONCE, share.stop)]
                tokens = self.preprocessor.texts(some)  # (n, L) each
                # longest first, so that a batch too large for the memory fails at once
                order = self.preprocessor.lengths(tokens).argsort(descending=True, stable=True)  # (n,)
                features = []
                for batch in torch.split(order, self.batch_size):
                    with self._inference():
                        features.append(self._text_features(self.preprocessor.text_inputs(tokens, batch)).cpu())
                    bar.update(len(batch))
                vectors = torch.cat(features)[order.argsort()]
                yield slice(start, start + len(some)), _unit(vectors, [f"caption {text!r}" for text in some])

    def _text_features(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        inputs = {name: ids.to(self.device) for name, ids in inputs.items()}
        return self.model.get_text_features(**inputs).pooler_output.float()

    @contextmanager
    def _inference(self) -> Iterator[None]:
        was_training, dtype = self.model.training, PRECISIONS[self.precision]
        self.model.eval()
        try:
            with torch.inference_mode(), torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
                yield
        finally:
            self.model.train(was_training)


def _distinct(captions: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """Return the distinct texts in order of appearance, and each caption's place among them, (M,)."""
    places: dict[str, int] = {}
    where = np.array([places.setdefault(caption, len(places)) for caption in captions[:]], np.int64)
    return list(places), where


def _spread(parts: TextParts, places: np.ndarray) -> Parts:
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


def _unit(vectors: torch.Tensor, names: Sequence[str]) -> np.ndarray:
    norms = vectors.norm(dim=1, keepdim=True)
    if (bad := ~(torch.isfinite(norms) & (norms > 0))).any():
        first = int(bad.squeeze(1).nonzero()[0])
        raise UserError(
            f"{int(bad.sum())} of {len(vectors)} vectors are zero or not finite, first for {names[first]}. "
            "The model's weights may be broken; check its training run."
        )
    return (vectors / norms).numpy()


def _settled(config: dict[str, Any]) -> dict[str, Any]:
    """Drop from a configuration what changes when the same weights are saved and loaded."""
    return {
        key: _settled(value) if isinstance(value, dict) else repr(value)
        for key, value in config.items()
        if key not in NOT_OF_THE_WEIGHTS
    }
