"""What a method of the study is: how its data are made, and the loss that it trains with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import PaperGrid
from repair_hf.training.step import Objective

TOY = "toy world"
Sample = tuple[int, dict[str, Any]]  # the row of its caption, and its text or its image, or both
MakeObjective = Callable[[DualEncoder, RepairConfig], Objective]


@dataclass(frozen=True)
class Maker:
    """How one kind of samples is made, once for all methods and seeds that use it."""

    name: str  # name of the folder
    make: Callable[[Any], Awaitable[Iterable[Sample]]]  # called with a `MakerContext`
    prompt: str = ""  # what the LLM is asked about each caption; empty if it is not asked
    answers: int = 0  # requested for each caption
    edits: int = 0  # candidates of each edited image; 0 if no image is edited
    draws: bool = False  # whether images are generated from text
    parses: bool = False  # whether captions are parsed
    is_toy: bool = False  # whether it knows the toy world alone

    @property
    def means(self) -> frozenset[str]:
        """What it uses: the options `llm`, `editor`, `spacy_model` of the study, or the toy world."""
        used = {"llm": self.prompt, "editor": self.edits or self.draws, "spacy_model": self.parses, TOY: self.is_toy}
        return frozenset(name for name, is_used in used.items() if is_used)


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
    needs: str = ""  # a package of the extra `repair-hf[study]` that its objective uses

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
