"""Open a retriever, however a caller names it: by id, by folder, or as a loaded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin

from repair_hf.encoder.dual_encoder import A_MODEL, DualEncoder
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.runtime.options import UserError, expect

Retriever = str | Path | PreTrainedModel | DualEncoder
"""A dual encoder: a Hub id, a folder, a model of transformers such as `CLIPModel`, or a `DualEncoder`."""


def open_encoder(
    model: Retriever,
    processor: ProcessorMixin | Preprocessor | None = None,
    *,
    device: str | torch.device | None = None,
    batch_size: int = 256,
    precision: str = "fp32",
) -> DualEncoder:
    """Open a retriever. A loaded model becomes float32 in place; an open `DualEncoder` is returned as it is.

    Args:
        model: Hub id, folder, model or encoder.
        processor: Its processor; by default the one that lies where the model was loaded from.
        device: Where to run; by default this process's accelerator, or the CPU.
        batch_size: Images or captions encoded at once.
        precision: `fp32`, `bf16` or `fp16`, see `DualEncoder`.

    Raises:
        UserError: If the model is of another type or cannot be loaded, or a processor is needed and not given.
    """
    if isinstance(model, DualEncoder):
        return model
    expect(model, (str, Path, PreTrainedModel), "model", f"{A_MODEL}, a Hub id or a folder")
    how: Any = {"device": device, "batch_size": batch_size, "precision": precision}
    if isinstance(model, PreTrainedModel):
        name = str(model.name_or_path)
        if processor is None and not name:
            raise UserError(
                "The model was not loaded from a folder or the Hub, so `processor` is needed. Give it too."
            )
        model.float()  # transformers loads in the precision of the file
        return DualEncoder(model, processor or Preprocessor.from_pretrained(name), **how)
    encoder = DualEncoder.from_pretrained(model, **how)
    return encoder if processor is None else DualEncoder(encoder.model, processor, **how)
