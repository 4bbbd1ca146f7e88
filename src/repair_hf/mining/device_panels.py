"""Screen one panel of columns where its scores are: on a GPU, which returns counts and the pairs that may matter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from repair_hf.mining import panels
from repair_hf.mining.panels import LOWEST, Pairs, Panel


class DevicePanel(Panel):
    """A panel whose blocks are tensors on a device; it counts there, and little leaves it."""

    def screened(self) -> Iterator[Tensor]:
        """Yield the screened scores of each block of rows, (r, C), -inf where positive; all share one buffer."""
        row, column, ends = self.positives()
        where = self.blocks[0].device
        at_row, at_column = (torch.from_numpy(place).to(where) for place in (row, column))
        panel = torch.from_numpy(self.columns).to(self.blocks[0]).T
        products = self.blocks[0].new_empty(len(self.blocks[0]), len(self.panel))
        hidden = torch.tensor(-np.inf, device=where)
        for block, start, stop in zip(self.blocks, ends, ends[1:], strict=False):
            scores = torch.mm(block, panel, out=products[: len(block)])
            yield scores.index_put_((at_row[start:stop], at_column[start:stop]), hidden)

    def candidates(self, scores: Tensor, rows: np.ndarray) -> Pairs:
        """Count the pairs of a block that are certainly ahead; return those that may matter, with places in `rows`."""
        queries, sides = (rows, np.arange(scores.shape[1])), (self.row, self.column)
        bounds = [
            torch.from_numpy(np.stack([side.low[query], side.high[query], side.top[query]])).to(scores.device)
            for side, query in zip(sides, queries, strict=True)
        ]
        bounds[0] = bounds[0][:, :, None]  # (3, r, 1) of the rows, (3, C) of the columns
        of_row, of_column = (torch.minimum(low, top) for low, _, top in bounds)
        mask = (scores >= of_row) | (scores >= of_column)
        is_sparse = int(mask.count_nonzero()) <= panels.FEW * mask.numel()
        if not is_sparse:  # count whole rows and columns
            mask = (scores >= bounds[0][2]) | (scores >= bounds[1][2])
            for axis, side, query, (low, high, _) in zip((1, 0), sides, queries, bounds, strict=True):
                is_ahead = scores >= high
                side.ahead[query] += is_ahead.sum(axis).cpu().numpy()
                mask |= (scores >= low) & ~is_ahead
        place = mask.flatten().nonzero()[:, 0]
        row, column, score = place // scores.shape[1], place % scores.shape[1], scores.flatten()[place]
        if is_sparse:
            stays = torch.zeros_like(score, dtype=torch.bool)
            for side, query, at, of_side in zip(sides, queries, (row, column), bounds, strict=True):
                low, high, top = of_side.flatten(1)[:, at]
                is_ahead = score >= high
                count = torch.zeros(of_side[0].numel(), dtype=torch.int64, device=scores.device)
                side.ahead[query] += count.index_add_(0, at, is_ahead.long()).cpu().numpy()
                stays |= (score >= top) | (score >= low) & ~is_ahead
            row, column, score = row[stays], column[stays], score[stays]
        return row.cpu().numpy(), column.cpu().numpy(), score.cpu().numpy()

    def about_the_best(self, scores: Tensor, k: int) -> np.ndarray:
        """At most the k-th best score of each row, and close to it: (q, c) to (q,)."""
        width = scores.shape[1]
        if not 0 < k <= width:
            return np.full(len(scores), LOWEST)
        if k < width // 64:  # sort the best of every eight instead of all
            scores = scores[:, : width // 8 * 8].unflatten(1, (8, -1)).amax(1)
        return scores.topk(k, sorted=False).values.amin(1).cpu().numpy()
