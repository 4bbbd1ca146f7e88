"""What a method of the study is: how its data are made, and the loss that it trains with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.study.methods.context import Maker
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, PaperGrid
from repair_hf.training.step import Objective

MakeObjective = Callable[[DualEncoder, Anchors, RepairConfig], Objective]


@dataclass(frozen=True)
class Records:
    """How records of RePair or of a variant are made, once for all methods and seeds that use them.

    LLM and editor are the study's, or those of the swap of this name.
    """

    name: str  # name of the folder
    mine: Mapping[str, Any] = field(default_factory=dict)  # options of `mine` that differ from the study's
    synthesize: Mapping[str, Any] = field(default_factory=dict)  # options of `synthesize` that differ
    directions: tuple[str, ...] = ("i2t", "t2i")  # directions whose failures are repaired

    @property
    def means(self) -> frozenset[str]:
        """What they use, as for a `Maker`."""
        return frozenset({"llm", "editor"} if "t2i" in self.directions else {"llm"})


@dataclass(frozen=True)
class Method:
    """A method: a baseline that trains on samples, or RePair or a variant of it, which trains on records."""

    name: str  # name in `--methods` and in the tables
    parts: Mapping[str, Maker | Records] = field(default_factory=dict)  # see `samples.Part`; or `records` alone
    loss: str = "batch"  # default of the settings: a pair beside an anchor is one more pair of the batch
    objective: MakeObjective | None = None  # None means the loss of the settings
    more_images: int = 0  # images that its objective encodes for each anchor, beside those of the batch
    needs: tuple[str, ...] = ()  # packages of the extra `repair-hf[study]` that it uses

    # of RePair and its variants
    fill: str = ""  # default of the settings; empty for what has no records
    edits: bool = True  # whether it trains on the edits; False is the false positives alone
    own_fill: type[PaperGrid] | None = None  # None means the fill of the settings
    # the method whose hyperparameters it uses, from which an ablation differs in one choice only; empty for its own
    tuned_as: str = ""

    @property
    def records(self) -> Records | None:
        """Its records; None for a baseline."""
        return next((part for part in self.parts.values() if isinstance(part, Records)), None)

    @property
    def means(self) -> frozenset[str]:
        """What its data need, as for a `Maker`."""
        return frozenset().union(*(part.means for part in self.parts.values()))
