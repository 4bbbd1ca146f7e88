"""How requests are sent to a provider."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from repair_hf.runtime.options import Bounded, opt


@dataclass(kw_only=True)
class RequestOptions(Bounded):
    """How requests are sent."""

    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = opt(
        None,
        "How much the LLM thinks before it answers; thinking is billed. Default: the provider's.",
        main=True,
    )
    concurrency: int = opt(16, "LLM requests to send at once.", least=1, neutral=True)
    timeout: float = opt(
        300.0,
        "Seconds to wait for an answer or image; a request that times out counts at its highest price.",
        above=0,
        neutral=True,
    )
    max_error_rate: float = opt(
        0.5,
        "Stop if a larger share of recent requests or answers fails; 1 drops what fails and continues.",
        least=0,
        most=1,
        neutral=True,
    )
    answer_attempts: int = opt(
        2,
        "Attempts per question until an answer is usable, those of earlier runs included.",
        least=1,
        neutral=True,
    )
