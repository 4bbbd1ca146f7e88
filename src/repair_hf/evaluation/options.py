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
    resamples: int = opt(2000, "Bootstrap resamples of the images, for the 95% intervals.", main=True, least=1)
