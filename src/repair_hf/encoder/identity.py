"""Check that a retriever is the one that failures were mined with, or that records were made for."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from repair_hf.encoder.embedder import Embedder
from repair_hf.runtime.options import UserError


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
    if None in names or not names or any(_is(encoder, str(name)) for name in names):
        return
    raise UserError(
        f"{what} were made with {', '.join(sorted(map(str, names)))}, but --model is {encoder.name}. Give the same "
        "model, or add --any-model to continue with this one."
    )


def _is(encoder: Embedder, name: str) -> bool:
    """Compare digests, which change with the versions of transformers and Pillow, too; of the Hub's models, ids."""
    model, _, digest = name.rpartition("@")
    return digest == encoder.digest or (model == encoder.origin and not Path(model).exists())
