"""The tokenizer of a text tower: whether it is the model's, where a caption ends, and which captions are truncated."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import torch

from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

HIGHEST = 2  # `eos_token_id` of old configurations, with which CLIP reads the highest id of a caption as its end
LEAST_COVERED = 0.9  # of a text tower's embeddings by the tokenizer; some models pad theirs to a round number
TOKENIZED_AT_ONCE = 4096


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


def check_tokenizer(tokenizer: Any, embedded: int) -> None:
    """Check that a tokenizer can pad, and is its model's: transformers builds an empty one where files are missing.

    Raises:
        UserError: If it has no padding token, or far fewer tokens than the text tower embeds, or more.
    """
    name = tokenizer.name_or_path or type(tokenizer).__name__
    if tokenizer.pad_token_id is None:
        raise UserError(
            f"`{name}` has a tokenizer without a padding token. Name one as `pad_token` in its "
            "tokenizer_config.json: the one of the model that it was trained from."
        )
    if len(tokenizer) < LEAST_COVERED * embedded or tokenizer.vocab_size > embedded:
        raise UserError(
            f"`{name}` lacks its tokenizer: the one found has {len(tokenizer):,} tokens, and the "
            f"text tower embeds {embedded:,}. Add tokenizer.json: "
            "`AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)`, where BASE is the id of the model that it "
            "was trained from."
        )


def tokenizer_settings(tokenizer: Any) -> Any:
    """Return all settings that affect the token ids of a tokenizer without padding and truncation."""
    if not tokenizer.is_fast:
        return [type(tokenizer).__name__, tokenizer.get_vocab()]
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    of_the_last_call = ("padding", "truncation")
    return {part: state[part] for part in state if part not in of_the_last_call}


def report_captions(tokenizer: Any, max_length: int, captions: Sequence[str]) -> int:
    """Count the captions that are truncated, and log a warning if there are any."""
    room = max_length - tokenizer.num_special_tokens_to_add()
    # a token takes a character, and a space may be added in front, so shorter captions need no tokens to fit
    doubtful = [caption for caption in captions[:] if len(caption) >= room or not caption.isascii()]
    n_cut = 0
    for start in range(0, len(doubtful), TOKENIZED_AT_ONCE):
        part = doubtful[start : start + TOKENIZED_AT_ONCE]
        n_cut += sum(len(ids) > room for ids in tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"])
    if n_cut:
        logger.warning(
            "%s of %s captions were truncated to %d tokens, the most that the model reads.",
            f"{n_cut:,}",
            f"{len(captions):,}",
            max_length,
        )
    return n_cut
