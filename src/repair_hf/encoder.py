"""A dual encoder: images and captions to unit vectors of one space.

In:  a CLIP- or SigLIP-like model of `transformers` with its processor; images, captions.
Out: float32 unit vectors. Those of whole datasets can be kept on disk under the weights' and the data's digests, so a
     fine-tuned model never meets its parent's vectors.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor
from tqdm.auto import tqdm
from transformers import AutoModelForZeroShotImageClassification, PreTrainedModel

from repair_hf.options import UserError
from repair_hf.pairs import Pairs
from repair_hf.preprocessing import Preprocessor
from repair_hf.runs import digest

logger = logging.getLogger(__name__)

CAPTIONS_AT_ONCE = 16_384  # tokenized and sorted by length together
NOT_OF_THE_WEIGHTS = ("_name_or_path", "transformers_version", "architectures", "dtype")


class DualEncoder:
    """Embeds images and captions.

    Args:
        model: Any dual encoder of `transformers` with `get_image_features` and `get_text_features`.
        preprocessor: The model's.
        device: Where to run; by default the accelerator if there is one.
        batch_size: Images or captions encoded at once.

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
    ) -> None:
        if batch_size < 1:
            raise UserError(f"`batch_size` must be at least 1, got {batch_size}.")
        self.device = _default_device() if device is None else torch.device(device)
        self.model, self.preprocessor, self.batch_size = model.to(self.device), preprocessor, batch_size

    @classmethod
    def from_pretrained(
        cls, id_or_folder: str | Path, *, device: str | torch.device | None = None, batch_size: int = 256
    ) -> DualEncoder:
        """Load model and processor from the Hub or from a folder; the weights become float32.

        Raises:
            UserError: If there is no such model, or it is no dual encoder.
        """
        try:
            model = AutoModelForZeroShotImageClassification.from_pretrained(id_or_folder, dtype=torch.float32)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise UserError(
                f"`{id_or_folder}` cannot be loaded as a dual encoder (CLIP, SigLIP, ...): {reason}"
            ) from error
        return cls(model, Preprocessor.from_pretrained(id_or_folder), device=device, batch_size=batch_size)

    @property
    def digest(self) -> str:
        """Names the weights as they are now, the configuration and the processor."""
        found = hashlib.sha256(digest([_settled(self.model.config.to_dict()), self.preprocessor.digest]).encode())
        for name, tensor in self.model.state_dict().items():
            found.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)};".encode())
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return found.hexdigest()[:16]

    def embed_images(self, images: Any, *, desc: str | None = None) -> np.ndarray:
        """Embed images.

        Args:
            images: A list of pictures, a column of a dataset, a `PixelStore`, or a (N, 3, H, W) uint8 tensor of
                pixels.
            desc: Title of the progress bar; none without it.

        Shape:
            Returns (N, D) float32, unit length.

        Raises:
            UserError: If an image cannot be decoded, or its vector is zero or not finite.
        """
        vectors = []
        with self._inference():
            for pixels in self.preprocessor.batches(images, self.batch_size, desc):  # (B, 3, H, W)
                values = self.preprocessor.normalize(pixels.to(self.device)).to(self.model.dtype)
                vectors.append(self.model.get_image_features(pixel_values=values).pooler_output.float().cpu())
        return _unit(vectors, lambda row: f"image {row}")

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
        places: dict[str, int] = {}
        rows = np.array([places.setdefault(caption, len(places)) for caption in captions[:]], np.int64)  # (M,)
        texts = list(places)
        vectors = []
        with (
            self._inference(),
            tqdm(total=len(texts), desc=desc, unit=" captions", delay=1, disable=None if desc else True) as bar,
        ):
            for start in range(0, len(texts), CAPTIONS_AT_ONCE):
                vectors.append(self._embed_some(texts[start : start + CAPTIONS_AT_ONCE], bar))
        return _unit(vectors, lambda row: f"caption {texts[row]!r}")[rows]

    def embed_pairs(self, pairs: Pairs, *, cache_folder: str | Path | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Embed the images and the captions of pairs.

        Args:
            pairs: The pairs.
            cache_folder: Where the vectors are kept, and found when the same weights meet the same data again; None
                keeps nothing.

        Shape:
            Returns (N, D) and (M, D).
        """
        if cache_folder is None:
            return self._embed_pairs(pairs)
        path = Path(cache_folder) / f"embeddings-{digest([self.digest, pairs.fingerprint])}.safetensors"
        if path.is_file():
            logger.info(
                "Embeddings of %d images and %d captions taken from %s.", len(pairs.images), len(pairs.captions), path
            )
            kept = load_file(path)
            return kept["images"], kept["texts"]
        images, texts = self._embed_pairs(pairs)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
        try:
            save_file({"images": images, "texts": texts}, draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        return images, texts

    def _embed_pairs(self, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        images = self.embed_images(pairs.images["image"], desc="Embedding images")
        return images, self.embed_texts(pairs.captions["caption"], desc="Embedding captions")

    def _embed_some(self, texts: list[str], bar: tqdm) -> Tensor:
        """Embed by length, so that little padding is encoded, and restore the order."""
        tokens = self.preprocessor.texts(texts)  # (n, L) each
        # the longest first: what does not fit into memory fails at once
        order = self.preprocessor.lengths(tokens).argsort(descending=True, stable=True)  # (n,)
        vectors = []
        for batch in order.split(self.batch_size):
            part = {name: ids.to(self.device) for name, ids in self.preprocessor.text_inputs(tokens, batch).items()}
            vectors.append(self.model.get_text_features(**part).pooler_output.float().cpu())
            bar.update(len(batch))
        return torch.cat(vectors)[order.argsort()]

    @contextmanager
    def _inference(self) -> Iterator[None]:
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self.model.train(was_training)


def _default_device() -> torch.device:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def _unit(vectors: list[Tensor], name: Callable[[int], str]) -> np.ndarray:
    if not vectors:
        raise UserError("There is nothing to embed; give one image or caption at least.")
    rows = torch.cat(vectors)  # (n, D)
    norms = rows.norm(dim=1, keepdim=True)
    if (bad := ~(torch.isfinite(norms) & (norms > 0))).any():
        first = int(bad.squeeze(1).nonzero()[0])
        raise UserError(
            f"The model gives {int(bad.sum())} of {len(rows)} vectors that are zero or not finite, first for {name(first)}. "
            "Its weights may be broken: look at the run that made them."
        )
    return (rows / norms).numpy()


def _settled(config: dict) -> dict:
    """A configuration without what changes when the same weights are saved and loaded."""
    return {
        key: _settled(value) if isinstance(value, dict) else repr(value)
        for key, value in config.items()
        if key not in NOT_OF_THE_WEIGHTS
    }
