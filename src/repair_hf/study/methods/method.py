"""What a method of the study is: what it adds to the training pairs, and the loss it trains with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.study.methods.context import MakerContext
from repair_hf.study.methods.samples import Part
from repair_hf.study.methods.selection import Selection
from repair_hf.training.config import RepairConfig
from repair_hf.training.fills import Anchors, PaperGrid
from repair_hf.training.step import Objective

TOY = "toy world"
BATCH = {"loss": "batch"}  # a pair beside an anchor is one more pair of the batch
EDITS = {"fill": "edits"} | BATCH

MakeObjective = Callable[[DualEncoder, Anchors, RepairConfig], Objective]


@dataclass(frozen=True)
class Maker:
    """How one kind of samples is made, once for all methods and seeds that use it."""

    name: str  # name of the samples' folder
    make: Callable[[MakerContext], Awaitable[list[dict[str, Any]]]]  # makes rows of `SAMPLES`
    asks: Mapping[str, int] = field(default_factory=dict)  # prompt -> number of answers requested for each caption
    edits: int = 0  # candidates of each edited image; 0 if no image is edited
    draws: bool = False  # whether images are generated from text
    parses: bool = False  # whether captions are parsed
    is_toy: bool = False  # whether it knows the toy world alone

    @property
    def makes_images(self) -> bool:
        return self.draws or self.edits > 0

    @property
    def means(self) -> frozenset[str]:
        """What it uses: the options `llm`, `editor`, `spacy_model` of the study, or the toy world."""
        used = {"llm": self.asks, "editor": self.makes_images, "spacy_model": self.parses, TOY: self.is_toy}
        return frozenset(name for name, is_used in used.items() if is_used)


@dataclass(frozen=True)
class Baseline:
    """A method that RePair is compared with."""

    name: str  # name in `--methods` and in the tables
    parts: Mapping[Part, Maker] = field(default_factory=dict)  # the maker of each part's samples
    objective: MakeObjective | None = None  # None means the loss that `train` names
    more_images: int = 0  # images that its objective encodes for each anchor, beside those of the batch
    needs: tuple[str, ...] = ()  # packages of the extra `repair-hf[study]` that it uses

    train: ClassVar[Mapping[str, Any]] = BATCH  # as a RepairVariant's
    other_model: ClassVar[bool] = False

    @property
    def tuned_as(self) -> str:
        """The method whose hyperparameters it uses: its own."""
        return self.name

    @property
    def means(self) -> frozenset[str]:
        return frozenset().union(*(maker.means for maker in self.parts.values()))

    @property
    def draws(self) -> bool:
        return any(maker.draws for maker in self.parts.values())


@dataclass(frozen=True)
class RepairVariant:
    """RePair, or a variant of it: options of the pipeline's commands."""

    name: str  # name in `--methods` and in the tables
    mine: Mapping[str, Any] = field(default_factory=dict)  # options of `repair-hf mine` that differ from the study's
    synthesize: Mapping[str, Any] = field(default_factory=dict)  # options of `repair-hf synthesize` that differ
    train: Mapping[str, Any] = field(default_factory=EDITS.copy)  # training options, with `fill` and `loss`
    directions: tuple[str, ...] = ("i2t", "t2i")  # directions whose failures are repaired
    swap: str | None = None  # name of the swap whose LLM and editor it uses
    other_model: bool = False  # train the study's other retriever
    rounds: int = 1  # rounds of mining and repair
    reciprocal: bool = False  # repair a caption's failure by editing the caption to fit the wrong image
    records: bool = True  # whether it trains on records; False is plain training
    select: Selection | None = None  # train on some of the edits; None is all
    edits: bool = True  # whether it trains on the edits; False is the false positives alone
    fill: type[PaperGrid] | None = None  # None means the fill that `train` names
    objective: MakeObjective | None = None  # None means the loss that `train` names
    masks_scenes: bool = False  # mask what is true by the toy world's scenes out of the loss
    # the method whose hyperparameters it uses: that from which an ablation differs in one choice only
    tuned_as: str = "repair"

    draws: ClassVar[bool] = False
    more_images: ClassVar[int] = 0

    @property
    def product(self) -> str:
        """Name of its records' folders; variants that differ in training only share records."""
        if self.swap:
            return self.swap
        differs = self.mine or self.synthesize or self.other_model or self.reciprocal
        return self.name if differs or self.rounds > 1 or len(self.directions) == 1 else "repair"

    @property
    def means(self) -> frozenset[str]:
        makes_images = self.records and "t2i" in self.directions and not self.reciprocal
        used = {"llm": self.records, "editor": makes_images, "other_model": self.other_model}
        used |= {TOY: self.masks_scenes}
        return frozenset(name for name, is_used in used.items() if is_used)


Method = Baseline | RepairVariant
