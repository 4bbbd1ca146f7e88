"""Plain fine-tuning, RePair, and RePair's variants, all trained by the package's own pipeline.

`vanilla` fine-tunes on the pairs alone, with symmetric InfoNCE over the batch. `repair` is the default of `repair-hf
train`: each edit stands beside the item that it was made from, as further pairs of the global batch. `repair-i2t` and
`repair-t2i` repair the failures of one direction; those of the other are records without an edit, which cost nothing.

The paper's ablations, and the paper's own rule:

| name | change to `repair` | our reading |
|---|---|---|
| `wo-failure` | no mining | same queries, random wrong answers; audit and edits as in `repair` |
| `wo-repair` | no edits | same records: the false positive is the hard negative, opposite the dataset's annotation |
| `wo-qc` | no audit | every mined failure is edited; `--always-instruct` also keeps those without anything to change |
| `wo-pqc` | no choice of the candidate | the first of three candidates |
| `repair-paper` | the paper's grids and grid loss | opposite an anchor's own failures always the best-scored edit |
| `full-matrix` | the paper's grids, in the global batch | their items are pairs like the anchors |
| `hard-neg-only` | the paper's grids without positives of the negatives | see `hard_negatives` |
| a swap's name, such as `weak-editor` | another LLM or editor | models from the study's option `swaps` |
| `other-backbone`, `other-backbone-vanilla` | another retriever | repaired, and plainly trained, tuned themselves |

Variants that the paper does not have:

| name | what it does |
|---|---|
| `repair-grid` | the edits of `repair` in the local grid loss |
| `repair-both-losses` | the same, and as pairs of the global batch |
| `repair-scenes` | pairs that are true by the toy world's scenes are masked out of the loss |
| `repair-reciprocal` | a caption's failure is repaired by editing the caption to fit the wrong image |
| `repair-2-rounds` | records of two rounds; the second is mined with the retriever that the first has repaired |
| a swap's name with `-grid` | the same edits in the local grid loss |
| `half-…`, `quarter-…` | a share of the edits, see `Selection` |

`repair-reciprocal` needs LLM calls but no images. The toy world has the swaps `weak-editor`, `weak-llm` and
`perfect-editor`.
"""

from __future__ import annotations

from typing import get_args

from repair_hf.study.methods.hard_negatives import HardNegatives, HardNegativesOnly
from repair_hf.study.methods.method import BATCH, EDITS, Baseline, RepairVariant
from repair_hf.study.methods.selection import Order, Selection

VANILLA = Baseline("vanilla")
GRID = EDITS | {"loss": "grid"}
PAPER = GRID | {"fill": "paper"}
VARIANTS = (
    RepairVariant("repair-i2t", directions=("i2t",), tuned_as="repair-i2t"),
    RepairVariant("repair-t2i", directions=("t2i",), tuned_as="repair-t2i"),
    RepairVariant("repair"),
    RepairVariant("wo-failure", mine={"false_positives": "random"}),
    RepairVariant("wo-repair", train=PAPER | BATCH, edits=False),
    RepairVariant("wo-qc", synthesize={"audited": False}),
    RepairVariant("wo-pqc", synthesize={"select": "first"}),
    RepairVariant("repair-paper", train=PAPER, tuned_as="repair-paper"),
    RepairVariant("full-matrix", train=PAPER | BATCH),
    RepairVariant(
        "hard-neg-only",
        train=PAPER,
        edits=False,
        fill=HardNegatives,
        objective=lambda encoder, fill, config: HardNegativesOnly(config.grid_weight, fill.share),
        tuned_as="repair-paper",
    ),
    RepairVariant("other-backbone-vanilla", other_model=True, records=False, tuned_as="other-backbone-vanilla"),
    RepairVariant("other-backbone", other_model=True, tuned_as="other-backbone"),
    RepairVariant("repair-grid", train=GRID, tuned_as="repair-paper"),
    RepairVariant("repair-both-losses", train=EDITS | {"loss": "both"}, tuned_as="repair-paper"),
    RepairVariant("repair-scenes", masks_scenes=True),
    RepairVariant("repair-reciprocal", reciprocal=True),
    RepairVariant("repair-2-rounds", rounds=2),
    *(
        RepairVariant(f"{name}-{order}", select=Selection(order, share))
        for name, share in (("half", 0.5), ("quarter", 0.25))
        for order in get_args(Order)
    ),
)


def swapped(name: str) -> tuple[RepairVariant, ...]:
    """Return the methods of a swap."""
    grid = RepairVariant(f"{name}-grid", swap=name, train=GRID, tuned_as="repair-paper")
    return RepairVariant(name, swap=name), grid
