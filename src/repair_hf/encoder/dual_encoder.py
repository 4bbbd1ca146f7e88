"""A dual encoder: images and captions to unit vectors of one space.

In:  a CLIP- or SigLIP-like model of `transformers` with its processor; images, captions.
Out: float32 unit vectors. Those of whole datasets are made by all processes of a run, each its share, and can be kept on
     disk under the weights' and the data's digests: so a fine-tuned model never meets its parent's vectors.
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
from transformers import (
    AutoConfig,
    AutoModelForZeroShotImageClassification,
    PreTrainedModel,
    VisionTextDualEncoderModel,
)

from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.shipped import locate
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.arrays import Parts, in_memory, on_disk
from repair_hf.runtime.hub_access import settle_hub
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.runtime.run_folder import digest

CAPTIONS_AT_ONCE = 4096  # tokenized and sorted by length together, by one process
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NOT_OF_THE_WEIGHTS = ("_name_or_path", "transformers_version", "architectures", "dtype")


class DualEncoder:
    """Embeds images and captions.

    Args:
        model: Any dual encoder of `transformers` with `get_image_features` and `get_text_features`.
        preprocessor: The model's.
        device: Where to run; by default where this process of the run computes: an accelerator of its own, if there is one.
        batch_size: Images or captions encoded at once.
        precision: Of the products inside the towers (autocast): `fp32`, `bf16`, or `fp16`, which needs a GPU. Weights and
            vectors are float32.

    Raises:
        UserError: If the size or the precision cannot be had.

    Example:
        >>> encoder = DualEncoder.from_pretrained("openai/clip-vit-base-patch32")
        >>> images, texts = encoder.embed_pairs(pairs)
    """

    def __init__(
        self,
        model: PreTrainedModel,
        preprocessor: Preprocessor,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 256,
        precision: str = "fp32",
    ) -> None:
        if batch_size < 1:
            raise UserError(f"`batch_size` must be at least 1, got {batch_size}.")
        if precision not in PRECISIONS:
            raise UserError(f"`precision` takes {', '.join(PRECISIONS)}, got {precision}.")
        self.device = processes().device if device is None else torch.device(device)
        if precision == "fp16" and self.device.type == "cpu":
            raise UserError("`precision` fp16 needs a GPU; use bf16 or fp32.")
        self.model, self.preprocessor = model.to(self.device), preprocessor
        self.batch_size, self.precision = batch_size, precision

    @classmethod
    def from_pretrained(
        cls,
        id_or_folder: str | Path,
        *,
        device: str | torch.device | None = None,
        batch_size: int = 256,
        precision: str = "fp32",
    ) -> DualEncoder:
        """Load model and processor from the Hub, from a folder, or `world/base` of this package; the weights become float32.

        Raises:
            UserError: If there is no such model, or it is no dual encoder.
        """
        id_or_folder = locate(id_or_folder)
        settle_hub(id_or_folder)
        try:
            config = AutoConfig.from_pretrained(id_or_folder)
            is_of_two = config.model_type == "vision-text-dual-encoder"  # any two towers; not among the auto classes
            kind = VisionTextDualEncoderModel if is_of_two else AutoModelForZeroShotImageClassification
            model = kind.from_pretrained(id_or_folder, config=config, dtype=torch.float32)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            here = "" if Path(id_or_folder).exists() else "is no folder here, and "
            raise UserError(
                f"`{id_or_folder}` {here}cannot be loaded as a dual encoder (CLIP, SigLIP, ...): {reason}"
            ) from error
        preprocessor = Preprocessor.from_pretrained(id_or_folder)
        return cls(model, preprocessor, device=device, batch_size=batch_size, precision=precision)

    @property
    def digest(self) -> str:
        """Names the weights as they are now, the configuration and the processor."""
        found = hashlib.sha256(digest([_settled(self.model.config.to_dict()), self.preprocessor.digest]).encode())
        for name, tensor in self.model.state_dict().items():
            found.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)};".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return found.hexdigest()[:16]

    @cached_property
    def dim(self) -> int:
        """Length of a vector."""
        with self._inference():
            tokens = self.preprocessor.texts(["a"])
            return self._text_features(self.preprocessor.text_inputs(tokens, torch.zeros(1, dtype=torch.long))).shape[
                1
            ]

    def embed_images(self, images: Any, *, desc: str | None = None, ids: Sequence[str] | None = None) -> np.ndarray:
        """Embed images.

        Args:
            images: A list of pictures, a column of a dataset, a `PixelStore`, or a (N, 3, H, W) uint8 tensor of
                pixels.
            desc: Title of the progress bar; none without it.
            ids: What an image is called in a message; its row without them.

        Shape:
            Returns (N, D) float32, unit length.

        Raises:
            UserError: If an image cannot be decoded, or its vector is zero or not finite.
        """
        return _joined(self._embed_images(images, slice(0, len(images)), desc, ids))

    def embed_texts(self, captions: Sequence[str], *, desc: str | None = None) -> np.ndarray:
        """Embed captions; each distinct text once, so equal texts have equal vectors.

        Args:
            captions: The texts.
            desc: Title of the progress bar; none without it.

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
        """Embed the images and the captions of pairs: each process its share, and every process gets the whole.

        The share is a run of whole batches of images, and of `CAPTIONS_AT_ONCE` distinct captions: nothing is encoded in
        other company than it would be in one process.

        Args:
            pairs: The pairs.
            pixels: Their images, if they are decoded already.
            cache_folder: Where the vectors are kept, memory-mapped, and found when the same weights meet the same data
                again, decoded alike; None keeps nothing.

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
        keep = {"dtype": np.float32, "remedy": "make room, or name another --output"}
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

    def _embed_texts(self, texts: list[str], share: slice, desc: str | None) -> Parts:
        """By length, so that little padding is encoded; in the order of the texts."""
        total = share.stop - share.start
        with tqdm(total=total, desc=desc, unit=" captions", delay=1, disable=None if desc else True) as bar:
            for start in range(share.start, share.stop, CAPTIONS_AT_ONCE):
                some = texts[start : min(start + CAPTIONS_AT_ONCE, share.stop)]
                tokens = self.preprocessor.texts(some)  # (n, L) each
                # the longest first: what does not fit into memory fails at once
                order = self.preprocessor.lengths(tokens).argsort(descending=True, stable=True)  # (n,)
                features = []
                for batch in order.split(self.batch_size):
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
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode(), self._autocast():
                yield
        finally:
            self.model.train(was_training)

    def _autocast(self) -> torch.autocast:
        dtype = PRECISIONS[self.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32)


def _distinct(captions: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts in order of appearance, and (M,) where in them each caption is."""
    places: dict[str, int] = {}
    where = np.array([places.setdefault(caption, len(places)) for caption in captions[:]], np.int64)
    return list(places), where


def _spread(parts: Parts, places: np.ndarray) -> Parts:
    """From rows of distinct texts to those of all captions that hold them."""
    order = np.argsort(places, kind="stable")
    for rows, vectors in parts:
        first, stop = np.searchsorted(places, (rows.start, rows.stop), sorter=order)
        captions = np.sort(order[first:stop])
        yield captions, vectors[places[captions] - rows.start]


def _joined(parts: Parts) -> np.ndarray:
    vectors = [values for _, values in parts]
    if not vectors:
        raise UserError("There is nothing to embed; give one image or caption at least.")
    return np.concatenate(vectors)


def _unit(vectors: torch.Tensor, names: Sequence[str]) -> np.ndarray:
    norms = vectors.norm(dim=1, keepdim=True)
    if (bad := ~(torch.isfinite(norms) & (norms > 0))).any():
        first = int(bad.squeeze(1).nonzero()[0])
        raise UserError(
            f"The model gives {int(bad.sum())} of {len(vectors)} vectors that are zero or not finite, first for {names[first]}. "
            "Its weights may be broken: look at the run that made them."
        )
    return (vectors / norms).numpy()


def _settled(config: dict) -> dict:
    """A configuration without what changes when the same weights are saved and loaded."""
    return {
        key: _settled(value) if isinstance(value, dict) else repr(value)
        for key, value in config.items()
        if key not in NOT_OF_THE_WEIGHTS
    }
