"""The token ids of many captions, kept once and without padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repair_hf.encoder.preprocessing import TOKENIZED_AT_ONCE, Preprocessor
from repair_hf.pairs.truth import expanded


class TokenStore:
    """The token ids of a table of captions, one after the other without padding."""

    def __init__(self, preprocessor: Preprocessor, captions: Sequence[Any]) -> None:
        self.preprocessor = preprocessor
        ids, lengths = [], []
        for part in captions:
            for start in range(0, len(part), TOKENIZED_AT_ONCE):
                tokens = preprocessor.texts(part[start : start + TOKENIZED_AT_ONCE])
                length = preprocessor.lengths(tokens).numpy()
                ids.append(tokens["input_ids"].numpy()[_mask(length)].astype(np.int32))
                lengths.append(length)
        self._ids, self.lengths = np.concatenate(ids), np.concatenate(lengths)
        self._starts = np.cumsum(self.lengths) - self.lengths

    def __getitem__(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Return the model's inputs for some captions, (n, L) each."""
        mask = _mask(self.lengths[rows])  # (n, L)
        ids = np.full(mask.shape, self.preprocessor.processor.tokenizer.pad_token_id)
        ids[mask] = self._ids[expanded(self._starts[rows], self._starts[rows] + self.lengths[rows])[0]]
        tokens = {"input_ids": torch.from_numpy(ids)}
        if not self.preprocessor.pads_fully:
            tokens["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        return self.preprocessor.text_inputs(tokens, torch.arange(len(rows)))


def _mask(lengths: np.ndarray) -> np.ndarray:
    """Return which of (n, longest) tokens are there, for n captions of some lengths."""
    return np.arange(lengths.max()) < lengths[:, None]
