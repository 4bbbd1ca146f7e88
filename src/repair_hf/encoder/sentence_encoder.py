"""Embed images and captions with a model of sentence-transformers, which does the encoding.

A caption is embedded as a query (`encode_query`), an image as a document (`encode_document`). Both directions rank
with these vectors.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repair_hf.encoder.embedder import Embedder, model_digest
from repair_hf.encoder.models import WITH_CODE
from repair_hf.encoder.preprocessing import (
    DECODED_AT_ONCE,
    PADDED_TO_FULL_LENGTH,
    RIGHT,
    ahead,
    cuts_of,
    image_settings,
    read_images,
)
from repair_hf.encoder.tokenizers import report_captions, settle_end, tokenizer_settings
from repair_hf.pairs.images import in_8_bits
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

IMAGES_AT_ONCE = 32  # opened at full size: a vision LLM cuts them into pieces itself
INSTALL = "pip install 'repair-hf[sentence-transformers]'"


class SentenceEncoder(Embedder):
    """A model of sentence-transformers that reads images and texts.

    Args:
        model: The model, as `SentenceTransformer(...)` loads it.
        origin: Its Hub id or folder; by default that of its first model of transformers.
        query_prompt: Prompt of captions; by default the model's own prompt for queries. Empty for none.
        document_prompt: Prompt of images; by default the model's own prompt for documents. Models without a chat
            template ignore it.
        device: Where to run; by default this process's accelerator, or the CPU.
        batch_size: Images or captions encoded at once.
        precision: Precision of the matrix products (autocast), see `DualEncoder`.

    Raises:
        UserError: If the model does not read both images and texts.
    """

    libraries = ("sentence-transformers",)

    def __init__(
        self,
        model: Any,  # a `SentenceTransformer`
        *,
        origin: str | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        device: str | torch.device | None = None,
        batch_size: int = 256,
        precision: str = "fp32",
    ) -> None:
        super().__init__(device, batch_size, precision)
        self.model = model.to(self.device)
        self._origin = str(origin or getattr(model.transformers_model, "name_or_path", None) or "")
        if not (model.supports("text") and model.supports("image")):
            reads = ", ".join(map(str, model.modalities))
            raise UserError(f"`{self._origin}` reads {reads}; give a model that reads image and text.")
        self.query_prompt = model.prompts.get("query") if query_prompt is None else query_prompt
        self.document_prompt = model.prompts.get("document") if document_prompt is None else document_prompt
        if model.similarity_fn_name != "cosine":
            logger.warning(
                "`%s` compares by %s. Here its vectors are normalized and compared by cosine.",
                self._origin,
                model.similarity_fn_name,
            )
        self._lowers = False
        for module in model.modules():
            if _is_siglip(module):
                self._lowers = True
                _pad_fully(module)
        if isinstance(model.tokenizer, PreTrainedTokenizerBase):
            settle_end(model, model.tokenizer, self._origin)

    @classmethod
    def from_pretrained(
        cls,
        id_or_folder: str,
        *,
        precision: str = "fp32",
        revision: str | None = None,
        attn_implementation: str | None = None,
        **options: Any,
    ) -> SentenceEncoder:
        """Load a model from the Hub or a folder, without running code of its repository.

        With `precision` fp32 its weights become float32; otherwise they stay as they are stored.

        Raises:
            UserError: If sentence-transformers is not installed, or the model cannot be loaded.
        """
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise UserError(f"`{id_or_folder}` is a sentence-transformers model; run `{INSTALL}`.") from error
        model_options: dict[str, Any] = {"dtype": torch.float32 if precision == "fp32" else "auto"}
        if attn_implementation is not None:
            model_options["attn_implementation"] = attn_implementation
        try:
            model = SentenceTransformer(
                id_or_folder, device="cpu", revision=revision, trust_remote_code=False, model_kwargs=model_options
            )
        except MemoryError:
            raise
        except Exception as error:  # broken settings raise errors of any kind
            message = " ".join(str(error).split())[:200].rstrip(". ") or type(error).__name__
            if "trust_remote_code" in str(error):
                message = WITH_CODE
            raise UserError(f"`{id_or_folder}` cannot be loaded by sentence-transformers: {message}.") from error
        return cls(model, origin=id_or_folder, precision=precision, **options)

    @property
    def origin(self) -> str:
        """The Hub id or folder of the weights; empty if unknown."""
        return self._origin

    @cached_property
    def digest(self) -> str:
        """A digest of weights, modules, processors and prompts; the same in any precision of the weights."""
        model = self.model
        settings = [repr(model), model.truncate_dim, model.prompts.get(model.default_prompt_name)]
        settings += [self.query_prompt, self.document_prompt]
        configs = []
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                configs.append(module.config.to_dict())
            processor = getattr(module, "processor", None)
            if processor is not None:
                settings += [getattr(module, "processing_kwargs", None), *_processor_settings(processor)]
        weights = (
            (name, tensor.float() if tensor.is_floating_point() else tensor)
            for name, tensor in model.state_dict().items()
        )
        return model_digest(settings, configs, weights)

    def report_captions(self, captions: Sequence[str]) -> int:
        """Count the captions that are truncated, and log a warning if there are any; 0 if the model does not say."""
        tokenizer, longest = self.model.tokenizer, self.model.max_seq_length
        if not isinstance(tokenizer, PreTrainedTokenizerBase) or longest is None:
            return 0
        return report_captions(tokenizer, longest, self._as_trained(captions[:]))

    def _image_vectors(self, images: Any, share: slice) -> Iterator[torch.Tensor]:
        def load(cut: tuple[int, int]) -> list[Any]:
            return [in_8_bits(image).convert("RGB") for image in read_images(images, *cut)]

        batches = cuts_of(share.start, share.stop, min(self.batch_size, IMAGES_AT_ONCE))
        pieces = [piece for batch in batches for piece in cuts_of(*batch, DECODED_AT_ONCE)]
        pictures = chain.from_iterable(ahead(load, pieces))
        for start, stop in batches:
            yield self._encode(self.model.encode_document, list(islice(pictures, stop - start)), self.document_prompt)

    def _text_vectors(self, texts: list[str]) -> torch.Tensor:
        # as a dict, or the library would open a caption that is the address or path of an image
        items = [{"text": text} for text in self._as_trained(texts)]
        prompt = self.query_prompt and self._as_trained([self.query_prompt])[0]
        return self._encode(self.model.encode_query, items, prompt)

    def _as_trained(self, texts: Sequence[str]) -> list[str]:
        return [text.lower() for text in texts] if self._lowers else list(texts)

    def _encode(self, encode: Any, items: list[Any], prompt: str | None) -> torch.Tensor:
        with self._autocast():
            vectors = encode(
                items,
                prompt=prompt,
                batch_size=self.batch_size,
                show_progress_bar=False,
                convert_to_tensor=True,
            )
        return vectors.float().cpu()


def is_sentence_transformer(model: Any) -> bool:
    """Return whether a loaded model is a `SentenceTransformer`, without importing the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


def _is_siglip(module: Any) -> bool:
    kind = getattr(getattr(module, "config", None), "model_type", None)
    return hasattr(module, "processing_kwargs") and kind in PADDED_TO_FULL_LENGTH


def _pad_fully(module: Any) -> None:
    """Give captions the padding that SigLIP was trained with, in place.

    sentence-transformers pads to the longest caption of a batch. SigLIP reads the last position, so a caption's vector
    would depend on its neighbors.
    """
    text = module.processing_kwargs.get("text", {})
    if "padding" not in text:
        longest = min(module.tokenizer.model_max_length, module.config.text_config.max_position_embeddings)
        padding = {"padding": "max_length", "max_length": longest, "return_attention_mask": False}
        if module.tokenizer.padding_side != RIGHT:
            padding["padding_side"] = RIGHT
        module.processing_kwargs = module.processing_kwargs | {"text": padding | text}


def _processor_settings(processor: Any) -> list[Any]:
    images, tokenizer = getattr(processor, "image_processor", None), getattr(processor, "tokenizer", processor)
    settings = [type(processor).__name__, getattr(processor, "chat_template", None)]
    if images is not None:
        settings.append(image_settings(images))
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        settings += [tokenizer_settings(tokenizer), tokenizer.padding_side, tokenizer.model_max_length]
    return settings
