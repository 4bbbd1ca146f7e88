"""The options of `repair-hf evaluate`. Nothing here loads torch."""

from __future__ import annotations

from dataclasses import dataclass

from repair_hf.runtime.options import EmbeddingOptions, need, opt


@dataclass(kw_only=True)
class EvaluateOptions(EmbeddingOptions):
    """Which retrievers are measured."""

    model: list[str] = need(
        "Retrievers: Hub id or folder of a dual encoder or SentenceTransformer, or world/base. Several are compared "
        "with the first."
    )
    near_misses: list[str] = opt(
        [],
        "Records of failures in a split that no model was trained on, to count near misses. See docs/evaluation.md.",
        main=True,
    )
    resamples: int = opt(2000, "Bootstrap resamples of the images, for the 95% intervals.", main=True, least=1)
