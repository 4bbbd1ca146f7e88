"""The options of a synthesis."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from repair_hf.runtime.options import Bounded, opt

Select = Literal["nearest", "first"]
Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Offload = Literal["none", "model", "sequential"]

# Sides in pixels.
SMALLEST_SIDE = 32  # no model can say what a smaller image shows
LONGEST_SIDE = 1024  # providers scale larger images down themselves, and bill for more tiles
SMALLEST_EDIT = 64  # FLUX.2 rejects smaller sides


@dataclass(kw_only=True)
class RepairOptions(Bounded):
    """How failures are repaired."""

    candidates: int = opt(3, "Edits to make of each false positive; the best is kept.", least=1)
    select: Select = opt("nearest", "Keep the edit nearest to the false positive, or the first one, as an ablation.")
    audited: bool = opt(True, "Let the LLM check each failure before it is edited.")
    seed: int = opt(0, "Seed of the LLM and the image editor.")
    attach_image: bool = opt(False, "Show the query image to the LLM that edits a caption.")
    grouped_audit: bool = opt(False, "Audit all false positives of an image in one request.")
    image_side: int = opt(LONGEST_SIDE, "Longest side, in pixels, of images sent to the LLM.", least=SMALLEST_SIDE)

    def as_keywords(self) -> dict[str, Any]:
        """These options as keywords of `Synthesizer`, without what a subclass adds."""
        return {each.name: getattr(self, each.name) for each in fields(RepairOptions)}


@dataclass(kw_only=True)
class SynthesisOptions(RepairOptions):
    """How failures are repaired, and in which round."""

    round: int = opt(1, "Number of this round of repair; later rounds start from the repaired retriever.")

    def is_grouped(self, direction: str) -> bool:
        """Whether the false positives of one query are audited in one request."""
        return self.audited and self.grouped_audit and direction == "i2t"
