"""The end of a caption: its vector must be the same alone and beside a longer one, whose length it is padded to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

HIGHEST = 2  # `eos_token_id` of old configurations, with which CLIP reads the highest id of a caption as its end
SHORT, LONG = "a dog", "a small brown dog runs over a green meadow"
APART = {True: 1e-3, False: 0.05}  # unit vectors, in float32 or not: other lengths are rounded differently


def settle_end(model: torch.nn.Module, tokenizer: Any, name: str) -> None:
    """Let text towers like CLIP's read the tokenizer's end token, in place.

    With `eos_token_id` 2 they read the highest id instead. That is another token in a vocabulary with a padding token
    of its own, or with added words.
    """
    end = tokenizer.eos_token_id
    for module in model.modules():
        reads = getattr(module, "eos_token_id", None)
        if not isinstance(reads, int) or end is None or reads == end:
            continue
        if reads != HIGHEST or end < max(tokenizer.get_vocab().values()):
            logger.info("%s: captions end at token %d, the tokenizer's end, and not at %d.", name, end, reads)
            module.eos_token_id = module.config.eos_token_id = end  # type: ignore[union-attr]


def check_padding(embed: Callable[[list[str]], Tensor], name: str, *, is_exact: bool) -> None:
    """Check a text tower: `embed` maps captions that are padded together to vectors, (n, D).

    Args:
        embed: Embeds captions.
        name: The model, for the error.
        is_exact: Whether it computes in float32.

    Raises:
        UserError: If the vector of a short caption depends on the padding after it.
    """
    both = torch.nn.functional.normalize(torch.cat([embed([SHORT]), embed([SHORT, LONG])[:1]]).float(), dim=1)
    distance = float((both[0] - both[1]).norm())
    if distance > APART[is_exact]:
        raise UserError(
            f"`{name}`: padding changes the vector of a caption (by {distance:.3f}, of unit length). Its tokenizer "
            "pads in another way than in training. Give the tokenizer or processor that it was trained with."
        )
