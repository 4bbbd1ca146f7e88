"""Embed images and captions with a model of sentence-transformers, which does the encoding.

A caption is embedded as a query (`encode_query`), an image as a document (`encode_document`). Both directions rank
with these vectors.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from repair_hf.encoder.embedder import Embedder, settled
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
from repair_hf.runtime.run_folder import digest

IMAGES_AT_ONCE = 32  # opened at full size: a vision LLM cuts them into pieces itself
INSTALL = "pip install 'repair-hf[sentence-transformers]'"
WITH_CODE = (
    "Its repository holds code, which this program does not run. Load it in Python and give the model to `mine`, or "
    "give its embeddings to `mine_false_positives`"
)


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
        own = getattr(model.transformers_model, "name_or_path", None)
        self._origin = str(origin or own or "")
        if not (model.supports("text") and model.supports("image")):
            reads = ", ".join(map(str, model.modalities))
            raise UserError(f"`{self._origin}` reads {reads}; give a model that reads image and text.")
        self.query_prompt = model.prompts.get("query") if query_prompt is None else query_prompt
        self.document_prompt = model.prompts.get("document") if document_prompt is None else document_prompt
        self._padding = _full_padding(model)
        self._lowers = any(map(_is_siglip, model.modules()))
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
        how: dict[str, Any] = {"dtype": torch.float32 if precision == "fp32" else "auto"}
        if attn_implementation is not None:
            how["attn_implementation"] = attn_implementation
        try:
            model = SentenceTransformer(id_or_folder, device="cpu", revision=revision, model_kwargs=how)
        except MemoryError:
            raise
        except Exception as error:  # broken settings raise errors of any kind
            said = " ".join(str(error).split())[:200].rstrip(". ") or type(error).__name__
            remedy = WITH_CODE if "trust_remote_code" in str(error) else "Save it again with `save_pretrained`"
            raise UserError(
                f"`{id_or_folder}` cannot be loaded by sentence-transformers: {said}. {remedy}."
            ) from error
        return cls(model, origin=id_or_folder, precision=precision, **options)

    @property
    def origin(self) -> str:
        """The Hub id or folder of the weights; empty if unknown."""
        return self._origin

    @cached_property
    def digest(self) -> str:
        """A digest of weights, modules, processors and prompts; the same in any precision of the weights."""
        model = self.model
        decides = [repr(model), model.truncate_dim, model.prompts.get(model.default_prompt_name)]
        decides += [self.query_prompt, self.document_prompt, self._padding]
        for module in model.modules():
            if isinstance(module, PreTrainedModel):
                decides.append(settled(module.config.to_dict()))
            if (processor := getattr(module, "processor", None)) is not None:
                decides.append(_processor_settings(processor))
        found = hashlib.sha256(digest(decides).encode())
        for name, tensor in model.state_dict().items():
            tensor = tensor.detach().float() if tensor.is_floating_point() else tensor.detach()
            found.update(f"{name}|{tuple(tensor.shape)};".encode())
            found.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return found.hexdigest()[:16]

    def report_captions(self, captions: Sequence[str]) -> int:
        """Count the captions that are truncated, and log a warning if there are any; 0 if the model does not say."""
        tokenizer, longest = self.model.tokenizer, self.model.max_seq_length
        if not isinstance(tokenizer, PreTrainedTokenizerBase) or longest is None:
            return 0
        return report_captions(tokenizer, longest, self._as_trained(captions[:]))

    def _image_vectors(self, images: Any, share: slice) -> Iterator[torch.Tensor]:
        def load(cut: tuple[int, int]) -> list[Any]:
            return [in_8_bits(image).convert("RGB") for image in read_images(images, *cut)]

        batches = cuts_of(share.start, share.stop, self.batch_size)
        cuts = [cut for batch in batches for cut in cuts_of(*batch, IMAGES_AT_ONCE)]
        pictures = chain.from_iterable(
            ahead(load, [piece for cut in cuts for piece in cuts_of(*cut, DECODED_AT_ONCE)])
        )
        for start, stop in cuts:
            some = list(islice(pictures, stop - start))
            yield self._encode(self.model.encode_document, some, self.document_prompt, self.batch_size)

    def _text_vectors(self, texts: list[str], done: Callable[[int], Any]) -> torch.Tensor:
        vectors = self._together(texts, self.batch_size)
        done(len(texts))
        return vectors

    def _together(self, texts: list[str], batch_size: int = 2) -> torch.Tensor:
        # as a dict, or the library would open a caption that is the address or path of an image
        some = [{"text": text} for text in self._as_trained(texts)]
        prompt = self.query_prompt and self._as_trained([self.query_prompt])[0]
        return self._encode(self.model.encode_query, some, prompt, batch_size, **self._padding)

    def _as_trained(self, texts: Sequence[str]) -> list[str]:
        return [text.lower() for text in texts] if self._lowers else list(texts)

    def _encode(self, encode: Any, items: list[Any], prompt: str | None, batch_size: int, **how: Any) -> torch.Tensor:
        with self._autocast():
            found = encode(
                items,
                prompt=prompt,
                batch_size=batch_size,
                show_progress_bar=False,
                convert_to_tensor=True,
                **how,
            )
        return found.float().cpu()


def is_sentence_transformer(model: Any) -> bool:
    """Return whether a loaded model is a `SentenceTransformer`, without importing the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(model, library.SentenceTransformer)


def _is_siglip(module: Any) -> bool:
    kind = getattr(getattr(module, "config", None), "model_type", None)
    return hasattr(module, "processor") and kind in PADDED_TO_FULL_LENGTH


def _full_padding(model: Any) -> dict[str, Any]:
    """Return the options by which captions get the padding that SigLIP was trained with, if that is what it is.

    sentence-transformers pads to the longest caption of a batch. SigLIP reads the last position, so a caption's vector
    would depend on its neighbours.
    """
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if not _is_siglip(module):
            continue
        if "padding" in getattr(module, "processing_kwargs", {}).get("text", {}):
            return {}
        longest = min(module.tokenizer.model_max_length, config.text_config.max_position_embeddings)
        text = {"padding": "max_length", "max_length": longest, "return_attention_mask": False}
        text |= {"padding_side": RIGHT} if module.tokenizer.padding_side != RIGHT else {}
        return {"processing_kwargs": {"text": text}}
    return {}


def _processor_settings(processor: Any) -> list[Any]:
    images, tokenizer = getattr(processor, "image_processor", None), getattr(processor, "tokenizer", processor)
    found = [type(processor).__name__, getattr(processor, "chat_template", None)]
    if images is not None:
        found.append(image_settings(images))
    if isinstance(tokenizer, PreTrainedTokenizerBase):
        found += [tokenizer_settings(tokenizer), tokenizer.padding_side, tokenizer.model_max_length]
    return found
