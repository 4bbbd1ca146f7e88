"""Recall@K, mean reciprocal rank and median rank of retrieval, for Hugging Face `evaluate`.

The file needs `evaluate` and NumPy only, so that it runs as a Space. A test compares it with `repair-hf evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence

import datasets
import evaluate
import numpy as np

_DESCRIPTION = """
Recall@K, mean reciprocal rank and median rank over a full ranking. R@K is the share of queries with any right
candidate among their first K, as papers on image-text retrieval report it. MRR is the mean of 1 / rank of a query's
best right candidate. Ties are ranked pessimistically.
"""
_INPUTS = """
Args:
    predictions: Each query's scores of its candidates, higher is better. In the configuration `ranks`: the rank of
        each query's best right candidate, from 1.
    references: Each query's right candidates, as places in its scores. Not in the configuration `ranks`.
    ks: The K of each Recall@K.

Returns:
    `R@K` for each K and `MRR`, from 0 to 1, higher is better; `median_rank`, from 1, lower is better; `n_queries`.

Examples:
    >>> recall = evaluate.load("metrics/retrieval_recall")
    >>> recall.compute(predictions=[[0.9, 0.1, 0.3], [0.2, 0.2, 0.1]], references=[[0, 2], [1]], ks=[1, 2])
    {'R@1': 0.5, 'R@2': 1.0, 'MRR': 0.75, 'median_rank': 1.5, 'n_queries': 2}
    >>> evaluate.load("metrics/retrieval_recall", "ranks").compute(predictions=[1, 3], ks=[1])
    {'R@1': 0.5, 'MRR': 0.6666666666666666, 'median_rank': 2.0, 'n_queries': 2}
"""
_CITATION = """
@book{manning2008introduction, title={Introduction to Information Retrieval}, author={Manning, Christopher D. and
Raghavan, Prabhakar and Sch{\\"u}tze, Hinrich}, publisher={Cambridge University Press}, year={2008}}
"""
KS = (1, 5, 10)


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _INPUTS)
class RetrievalRecall(evaluate.Metric):
    """Recall@K, MRR and median rank of scores, or of ranks."""

    def _info(self) -> evaluate.MetricInfo:
        if self.config_name not in ("default", "ranks"):
            raise ValueError(f"The configurations are `default` (of scores) and `ranks`, got {self.config_name!r}.")
        columns = {
            "predictions": datasets.Sequence(datasets.Value("float64")),
            "references": datasets.Sequence(datasets.Value("int64")),
        }
        if self.config_name == "ranks":
            columns = {"predictions": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features(columns),
        )

    def _compute(
        self, predictions: Sequence, references: Sequence | None = None, ks: Sequence[int] = KS
    ) -> dict[str, float]:
        if not ks or min(ks) < 1:
            raise ValueError(f"`ks` must be one or more numbers from 1, got {ks}.")
        if references is None:
            ranks = np.asarray(predictions)  # (Q,)
            if (bad := ranks < 1).any():
                raise ValueError(f"Ranks start at 1, got {ranks[bad][0]} for query {bad.argmax()}.")
        else:
            pairs = zip(predictions, references, strict=True)
            ranks = np.array([rank(query, np.asarray(scores), right) for query, (scores, right) in enumerate(pairs)])
        found = {f"R@{k}": float((ranks <= k).mean()) for k in ks}
        return found | {
            "MRR": float((1 / ranks).mean()),
            "median_rank": float(np.median(ranks)),
            "n_queries": len(ranks),
        }


def rank(query: int, scores: np.ndarray, right: Sequence[int]) -> int:
    """The rank of the best-scored right candidate: 1 + how many wrong ones score as much or more.

    Args:
        query: Its number, for messages.
        scores: (C,) of its candidates.
        right: Places of the right ones.
    """
    if not len(right):
        raise ValueError(f"Query {query} has no right candidate; leave it out.")
    if min(right) < 0 or max(right) >= len(scores):
        raise ValueError(f"Query {query} has {len(scores)} candidates, and {list(right)} as right ones.")
    if not np.isfinite(scores).all():
        raise ValueError(f"Query {query} has a score that is not finite, of candidate {np.isfinite(scores).argmin()}.")
    is_wrong = np.ones(len(scores), bool)
    is_wrong[right] = False
    return 1 + int((scores[is_wrong] >= scores[~is_wrong].max()).sum())
