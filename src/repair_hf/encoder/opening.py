"""Open a retriever, however a caller names it: by id, by folder, or as a loaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import torch
from transformers import PreTrainedModel, ProcessorMixin

from repair_hf.encoder.dual_encoder import A_MODEL, DualEncoder
from repair_hf.encoder.embedder import Embedder
from repair_hf.encoder.models import MODULES, has_file
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.sentence_encoder import SentenceEncoder, is_sentence_transformer
from repair_hf.encoder.shipped import locate
from repair_hf.runtime.hub_access import settle_hub
from repair_hf.runtime.options import UserError, expect

Retriever: TypeAlias = "str | Path | PreTrainedModel | Embedder | torch.nn.Module"
"""A Hub id, a folder, a model such as `CLIPModel`, a `DualEncoder`, or a `SentenceTransformer`."""


def open_retriever(
    model: Retriever,
    processor: ProcessorMixin | Preprocessor | None = None,
    *,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    revision: str | None = None,
    attn_implementation: str | None = None,
    **options: Any,
) -> Embedder:
    """Open what embeds images and captions: a model of sentence-transformers, or a dual encoder.

    A folder or Hub id with `modules.json` is a model of sentence-transformers.

    Args:
        model: Hub id, folder, model or encoder.
        processor: The processor of a dual encoder, see `open_encoder`.
        query_prompt: Prompt of captions, see `SentenceEncoder`.
        document_prompt: Prompt of images.
        revision: Branch, tag or commit on the Hub.
        attn_implementation: Attention of transformers, such as `eager` or `sdpa`.
        options: `device`, `batch_size` and `precision`, see `DualEncoder`.

    Raises:
        UserError: As `open_encoder`; or if prompts are given for another kind of model.
    """
    prompts: dict[str, Any] = {"query_prompt": query_prompt, "document_prompt": document_prompt}
    if is_sentence_transformer(model):
        return SentenceEncoder(model, **prompts, **options)
    if isinstance(model, str | Path):
        model = locate(model)
        settle_hub(model)
        options |= {"revision": revision, "attn_implementation": attn_implementation}
        if has_file(model, MODULES, revision):
            return SentenceEncoder.from_pretrained(model, **prompts, **options)
    for name, prompt in prompts.items():
        if prompt is not None:
            raise UserError(f"`{name}` is for models of sentence-transformers, which have {MODULES}; leave it out.")
    return model if isinstance(model, Embedder) else open_encoder(model, processor, **options)


def open_encoder(
    model: Retriever, processor: ProcessorMixin | Preprocessor | None = None, **options: Any
) -> DualEncoder:
    """Open a dual encoder. A loaded model becomes float32 in place; an open `DualEncoder` is returned as it is.

    Args:
        model: Hub id, folder, model or encoder.
        processor: Its processor; by default the one that lies where the model was loaded from.
        options: `device`, `batch_size`, `precision`; of an id or folder also `revision` and `attn_implementation`.

    Raises:
        UserError: If the model is of another type or cannot be loaded, or a processor is needed and not given.
    """
    if isinstance(model, DualEncoder):
        return model
    expect(model, (str, Path, PreTrainedModel), "model", f"{A_MODEL}, a Hub id or a folder")
    if isinstance(model, str | Path):
        return DualEncoder.from_pretrained(model, processor=processor, **options)
    name = str(model.name_or_path)  # type: ignore[union-attr]
    if processor is None and not name:
        raise UserError("The model was not loaded from a folder or the Hub, so `processor` is needed. Give it too.")
    model.float()  # type: ignore[union-attr]  # transformers loads in the precision of the file
    return DualEncoder(model, processor or Preprocessor.from_pretrained(name), **options)  # type: ignore[arg-type]
