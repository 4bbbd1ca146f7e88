"""Embed images and captions with a CLIP- or SigLIP-like model of `transformers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin

from repair_hf.encoder.embedder import Embedder, model_digest
from repair_hf.encoder.models import load_model, weights_dtype
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.token_store import TokenStore
from repair_hf.encoder.tokenizers import report_captions, settle_end
from repair_hf.runtime.options import expect

A_MODEL = "a CLIPModel, a SiglipModel or another dual encoder of transformers"


class DualEncoder(Embedder):
    """A dual encoder: maps images and captions to unit vectors of one space.

    Args:
        model: Any dual encoder of `transformers` with `get_image_features` and `get_text_features`.
        preprocessor: The model's processor, as transformers' `AutoProcessor` loads it, or a `Preprocessor`.
        device: Where to run; by default this process's accelerator, or the CPU.
        batch_size: Images or captions encoded at once.
        precision: Precision of the matrix products (autocast): `fp32`, `bf16`, or `fp16`, which needs a GPU. Weights
            and vectors are float32.

    Raises:
        UserError: If an argument is of a wrong type, the tokenizer is not the model's, or fp16 has no GPU.

    Example:
        >>> encoder = DualEncoder.from_pretrained("openai/clip-vit-base-patch32")
        >>> images, texts = encoder.embed_pairs(pairs)
    """

    preprocessor: Preprocessor

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
        super().__init__(device, batch_size, precision)
        self.model, self.preprocessor = model.to(self.device), preprocessor  # type: ignore[arg-type]
        settle_end(model, preprocessor.processor.tokenizer, self.origin)

    @classmethod
    def from_pretrained(
        cls,
        id_or_folder: str | Path,
        *,
        processor: ProcessorMixin | Preprocessor | None = None,
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
            processor: Its processor; by default the one beside the weights.
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
        processor = processor or Preprocessor.from_pretrained(id_or_folder, revision)
        return cls(model, processor, device=device, batch_size=batch_size, precision=precision)

    @property
    def digest(self) -> str:
        """A digest of the current weights, the configuration and the processor."""
        return model_digest(self.preprocessor.digest, [self.model.config.to_dict()], self.model.state_dict().items())

    @property
    def origin(self) -> str:
        """The Hub id or folder of the weights; empty if unknown."""
        return str(self.model.name_or_path)

    def report_captions(self, captions: Sequence[str]) -> int:
        """Count the captions that are truncated, and log a warning if there are any."""
        tokenizer = self.preprocessor.processor.tokenizer
        return report_captions(tokenizer, self.preprocessor.max_length, self.preprocessor.as_trained(captions[:]))

    def _image_vectors(self, images: Any, share: slice) -> Iterator[torch.Tensor]:
        for pixels in self.preprocessor.batches(images, self.batch_size, share):  # (B, 3, H, W)
            with self._inference():
                values = self.preprocessor.normalize(pixels.to(self.device)).to(weights_dtype(self.model))
                features = self.model.get_image_features(pixel_values=values)
                yield features.pooler_output.float().cpu()  # seen with transformers 5.23; a tensor in older ones

    def _text_vectors(self, texts: list[str]) -> torch.Tensor:
        """Embed in order of length, so that little padding is encoded; return in the order of the texts."""
        tokens = TokenStore(self.preprocessor, [texts])
        # longest first, so that a batch too large for the memory fails at once
        order = torch.from_numpy(tokens.lengths).argsort(descending=True, stable=True)  # (n,)
        features = []
        with self._inference():
            for rows in torch.split(order, self.batch_size):
                inputs = {name: ids.to(self.device) for name, ids in tokens[rows.numpy()].items()}
                features.append(self.model.get_text_features(**inputs).pooler_output.float().cpu())
        return torch.cat(features)[order.argsort()]

    @contextmanager
    def _inference(self) -> Iterator[None]:
        was_training = self.model.training
        self.model.eval()
        try:
            with self._autocast():
                yield
        finally:
            self.model.train(was_training)
