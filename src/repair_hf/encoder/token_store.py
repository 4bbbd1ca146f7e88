"""The token ids of many captions, kept once and without padding."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.tokenizers import TOKENIZED_AT_ONCE
from repair_hf.pairs.truth import expanded


class TokenStore:
    """The token ids of a table of captions, one after the other without padding.

    Args:
        preprocessor: Tokenizes them.
        captions: The table, in one or more consecutive parts: lists, or columns of a dataset.

    Attributes:
        lengths: (M,) tokens of each caption, without padding; all tokens where the model was trained with padding.
    """

    def __init__(self, preprocessor: Preprocessor, captions: Sequence[Any]) -> None:
        self.preprocessor = preprocessor
        ids, lengths = array("i"), array("i")  # they grow in place
        for part in captions:
            for start in range(0, len(part), TOKENIZED_AT_ONCE):
                token_ids = preprocessor.token_ids(part[start : start + TOKENIZED_AT_ONCE])
                ids.extend(chain.from_iterable(token_ids))
                lengths.extend(map(len, token_ids))
        self._ids, self.lengths = np.frombuffer(ids, np.int32), np.frombuffer(lengths, np.int32)
        self._starts = np.cumsum(self.lengths) - self.lengths

    def __getitem__(self, rows: np.ndarray) -> dict[str, Tensor]:
        """Return the model's inputs for some captions, padded to the longest of them, (n, L) int64 each.

        A causal text tower gets no mask: it never attends to the padding at the end, and attention without a mask uses
        a faster kernel. Nor does a model that was trained with padding.
        """
        lengths = self.lengths[rows]
        mask = np.arange(lengths.max()) < lengths[:, None]  # (n, L)
        ids = np.full(mask.shape, self.preprocessor.processor.tokenizer.pad_token_id)
        ids[mask] = self._ids[expanded(self._starts[rows], self._starts[rows] + lengths)[0]]
        tokens = {"input_ids": torch.from_numpy(ids)}
        if not (self.preprocessor.pads_fully or self.preprocessor.is_causal):
            tokens["attention_mask"] = torch.from_numpy(mask.astype(np.int64))
        return tokens
