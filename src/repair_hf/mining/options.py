"""The options of mining."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repair_hf.runtime.options import SEEDS, EmbeddingOptions, TruthOptions, UserError, need, opt


@dataclass(kw_only=True)
class MiningOptions(TruthOptions, EmbeddingOptions):
    """Which retriever, how many of its false positives to keep, and how to find them."""

    model: str = need("Retriever: Hub id or folder of a dual encoder or SentenceTransformer, or world/base.")
    k_mine: int = opt(
        100,
        "Most false positives to keep per query; with an index also the largest known rank of a ground truth.",
        least=1,
    )
    d_i2t: int = opt(5, "False positive captions to keep per image.", least=0, main=True)
    d_t2i: int = opt(1, "False positive images to keep per caption; each costs an image edit.", least=0, main=True)
    max_queries: int | None = opt(
        None,
        "Mine at most this many images, and as many of their captions, drawn at random. Default: all.",
        least=1,
        main=True,
    )
    wrong: str | None = opt(
        None,
        "Table of your own failures, with the columns query and wrong: texts, ids or paths. Only these are ranked.",
        main=True,
    )
    seed: int = opt(0, "Seed that draws the queries of `max_queries`.", least=0, most=SEEDS - 1)
    search: Literal["exact", "ivf"] = opt(
        "exact",
        "Exact search, or a FAISS index of clusters for millions of images and captions, which may miss some.",
        main=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self.k_mine, d_i2t=self.d_i2t, d_t2i=self.d_t2i)
        if self.wrong is not None and (self.max_queries is not None or self.search != "exact"):
            raise UserError(
                f"`wrong` {self.wrong} names what is ranked; leave out `max_queries` ({self.max_queries}) and "
                f"`search` ({self.search})."
            )


def check_sizes(k_mine: int, *, d_i2t: int, d_t2i: int) -> None:
    """Raise an error if more false positives are to be kept than `k_mine`, or none."""
    for name, d in (("d_i2t", d_i2t), ("d_t2i", d_t2i)):
        if not 0 <= d <= k_mine:
            raise UserError(f"`{name}` must lie between 0 and `k_mine` ({k_mine}), got {d}.")
    if d_i2t == d_t2i == 0:
        raise UserError("`d_i2t` and `d_t2i` are both 0, and nothing would be mined; set one of them to 1 or more.")
