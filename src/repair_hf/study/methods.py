"""The table of methods: what each trains on beside the pairs, its fill and its loss.

`plain` fine-tunes on the pairs alone. `repair-paper` is the method of RePair's paper, and the rows that name it as
`parent` are its ablations: each differs from it in one field. To add a method, add a row, with a maker in `makers.py`
or a loss in `losses.py` if those here do not do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from repair_hf.study import makers, negclip
from repair_hf.study.making import Maker
from repair_hf.study.samples import Part

PLAIN, PAPER = "plain", "repair-paper"


@dataclass(frozen=True)
class Records:
    """How records of RePair or of a variant are made, once for all methods and seeds that use them."""

    name: str  # name of the folder
    is_random: bool = False  # whether random wrong answers stand in place of mined failures
    synthesize: Mapping[str, Any] = field(default_factory=dict)  # options of `synthesize` that differ
    directions: tuple[str, ...] = ("i2t", "t2i")  # directions whose failures are repaired
    is_capped: bool = False  # whether at most as many edits train as `REPAIR` has: one budget


REPAIR = Records("repair")
Data = Records | Mapping[Part, Maker] | None


@dataclass(frozen=True)
class Method:
    """A row of the table. Each field is one choice."""

    name: str  # name in `--methods` and in the tables
    data: Data = None  # records, or samples by the part that they play; None for the pairs alone
    loss: str = "batch"  # one of `train`, or of `losses.OBJECTIVES`
    fill: str = ""  # of records: `edits` or `paper`
    edits: bool = True  # of records: False is the false positives alone
    grid_weight: float = 0.0  # lambda
    grid_mean: str = "grids"  # see `repair-hf train`
    parent: str = ""  # the method that it ablates

    @property
    def sources(self) -> dict[str, Records | Maker]:
        """What makes its data, by part; records are one part."""
        if isinstance(self.data, Records):
            return {"records": self.data}
        return {str(part): maker for part, maker in (self.data or {}).items()}


def ablation(name: str, **choice: Any) -> Method:
    """Return the paper's method with one other choice."""
    return replace(REPAIR_PAPER, name=name, parent=PAPER, **choice)


REPAIR_PAPER = Method(PAPER, REPAIR, loss="grid", fill="paper", grid_weight=0.5)
# The candidates for the default of `train`, the simplest first (docs/study.md says how it was chosen)
CANDIDATES = (
    Method("repair-batch", REPAIR, fill="edits"),
    Method("repair-grid", REPAIR, loss="grid", fill="edits", grid_weight=1.0),
    Method("repair-both", REPAIR, loss="both", fill="edits", grid_weight=1.0),
    Method("repair-both-0.25", REPAIR, loss="both", fill="edits", grid_weight=0.25),
    Method("repair-both-anchors", REPAIR, loss="both", fill="edits", grid_weight=1.0, grid_mean="anchors"),
    REPAIR_PAPER,
    Method("paper-both", REPAIR, loss="both", fill="paper", grid_weight=0.5),
)
DEFAULT = CANDIDATES[0]


I2T, T2I = Records("repair-i2t", directions=("i2t",)), Records("repair-t2i", directions=("t2i",))
ONE: Mapping[str, Any] = {"candidates": 1}
BOUGHT = (  # the default with a part of its records: what does which money buy?
    Method("captions-alone", I2T, fill="edits"),
    Method("images-alone", T2I, fill="edits"),
    Method("one-candidate", Records("one-candidate", synthesize=ONE), fill="edits"),
    Method("images-one-candidate", replace(T2I, name="t2i-one-candidate", synthesize=ONE), fill="edits"),
)
WO_FAILURE = Records("wo-failure", is_random=True, is_capped=True)  # the same queries
ABLATIONS = (
    ablation("repair-i2t", data=I2T),
    ablation("repair-t2i", data=T2I),
    ablation("wo-failure", data=WO_FAILURE),  # random wrong answers in place of mined failures
    ablation("wo-repair", edits=False),  # the false positive, opposite the dataset's annotation
    ablation("wo-qc", data=Records("wo-qc", synthesize={"audited": False})),  # every failure is edited
    ablation("wo-pqc", data=Records("wo-pqc", synthesize={"select": "first"})),  # the first candidate
    ablation("full-matrix", loss="batch"),  # its items are pairs of the batch
    ablation("hard-neg-only", loss="hard-negatives"),  # what the anchor was confused with, without what fits it
)
BASELINES = (
    Method("negclip", {"negative": negclip.SWAPS}),
    Method("sugarcrepe", {"negative": makers.HARD_NEGATIVES}),
    Method("laclip", {"rewrite": makers.REWRITES}),
    Method("simclr", loss="views"),
    Method("stablerep", {"drawn": makers.DRAWN}, loss="images"),
    Method("alia", {"variant": makers.VARIANTS}),
    Method("coco-cf", {"negative": makers.COUNTERFACTUALS}),
    Method("tripletclip", {"negative": makers.NEGATIVE_PAIRS}, loss="triplet"),
    Method("la+sc", {"rewrite": makers.REWRITES, "negative": makers.HARD_NEGATIVES}),
    # the paper merges the sources into one set; here each anchor draws from all three, and an epoch keeps its length
    Method("cf+al+la", {"negative": makers.COUNTERFACTUALS, "variant": makers.VARIANTS, "rewrite": makers.REWRITES}),
)
CONTROLS = (  # in the batch, beside `repair-batch` and `coco-cf`: whose errors are edited?
    Method("wrong-answers", WO_FAILURE, fill="edits"),
    Method("new-pairs", {"negative": makers.NEW_PAIRS}),
)
_ALL = (Method(PLAIN, loss="none"), *BASELINES, *CANDIDATES, *BOUGHT, *ABLATIONS, *CONTROLS)
METHODS = {method.name: method for method in _ALL}  # in the order of the tables
