"""What a method of the study is: what it adds to the training pairs, and which loss it trains with.

In:  nothing.
Out: `Baseline`, a method that makes samples of its own; `Repair`, a way to go through RePair's pipeline. A file of this folder that defines
     `METHODS` adds its methods to the study; nothing else names them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.study.methods.context import Workshop
from repair_hf.study.methods.samples import Part
from repair_hf.training.objectives import Objective


@dataclass(frozen=True)
class Maker:
    """How one kind of samples is made, once for all methods and seeds that use it.

    Args:
        name: Names the samples' folder.
        make: Makes them; gives rows of `SAMPLES`.
        asks: Prompt -> how many answers it asks for, of each caption; what a dry run counts.
        edits: M, candidates of an edited image; 0 where no image is edited.
        draws: Whether images are drawn anew.
        parses: Whether captions are parsed.
    """

    name: str
    make: Callable[[Workshop], Awaitable[list[dict[str, Any]]]]
    asks: Mapping[str, int] = field(default_factory=dict)
    edits: int = 0
    draws: bool = False
    parses: bool = False

    @property
    def means(self) -> frozenset[str]:
        """What it works with: `llm`, `editor`, `spacy_model`."""
        used = {"llm": self.asks, "editor": self.edits or self.draws, "spacy_model": self.parses}
        return frozenset(name for name, is_used in used.items() if is_used)


@dataclass(frozen=True)
class Baseline:
    """A method that RePair is compared with.

    Args:
        name: As `repair-hf study --list` prints it.
        parts: Who makes the samples of each part.
        objective: Gives the objective for a retriever; None is plain InfoNCE.
        needs: Packages of the extra `repair-hf[study]` that it uses.
    """

    name: str
    parts: Mapping[Part, Maker] = field(default_factory=dict)
    objective: Callable[[DualEncoder], Objective] | None = None
    needs: tuple[str, ...] = ()

    @property
    def tuned_as(self) -> str:
        """The method whose hyperparameters it takes: its own."""
        return self.name

    @property
    def means(self) -> frozenset[str]:
        """What its makers work with."""
        return frozenset().union(*(maker.means for maker in self.parts.values()))


@dataclass(frozen=True)
class Repair:
    """RePair, or a variant of it: options of the one pipeline.

    Args:
        name: As `repair-hf study --list` prints it.
        mine: Options of `repair-hf mine` that differ.
        synthesize: Options of `repair-hf synthesize` that differ.
        train: Options of training that differ.
        directions: Which failures are repaired.
        weak: Whose weaker stand-in takes part: the editor's or the LLM's.
        other_model: Whether the study's other retriever takes the place of its own.
        rounds: How many rounds of repair the records come from.
        reciprocal: Repair a caption's failure by editing the caption towards the wrong image.
        records: Whether there are any; without, this is plain training, and only the model differs.
        tuned_as: The method whose hyperparameters it takes: an ablation changes one thing, and not these too.
    """

    name: str
    mine: Mapping[str, Any] = field(default_factory=dict)
    synthesize: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    directions: tuple[str, ...] = ("i2t", "t2i")
    weak: Literal["editor", "llm"] | None = None
    other_model: bool = False
    rounds: int = 1
    reciprocal: bool = False
    records: bool = True
    tuned_as: str = "repair"

    @property
    def product(self) -> str:
        """Names the records: equal for variants that differ in training alone."""
        differs = self.mine or self.synthesize or self.weak or self.other_model or self.reciprocal
        return self.name if differs or self.rounds > 1 or len(self.directions) == 1 else "repair"

    @property
    def means(self) -> frozenset[str]:
        """What it works with: options of the study that it cannot do without."""
        makes_images = self.records and "t2i" in self.directions and not self.reciprocal
        used = {"llm": self.records, "editor": makes_images, "other_model": self.other_model}
        return frozenset(name for name, is_used in used.items() if is_used) | (
            {f"weak_{self.weak}"} if self.weak else set()
        )


Method = Baseline | Repair
