"""Plain fine-tuning, RePair, and RePair's variants, all trained by the package's own pipeline.

`vanilla` fine-tunes on the pairs alone, with symmetric InfoNCE over the batch. `repair-i2t` and `repair-t2i` repair
the failures of one direction; those of the other are records without an edit, which cost nothing. The other variants
change one choice of `repair`.

The paper's ablations:

| name | removed | our reading |
|---|---|---|
| `wo-failure` | mining | same queries, random wrong answers; audit and edits as in `repair` |
| `wo-repair` | edits | same records: the false positive is the hard negative, opposite the dataset's annotation |
| `wo-qc` | audit | every mined failure is edited; instructions without a change are still dropped |
| `wo-pqc` | choice of the candidate | the first of three candidates |
| `full-matrix` | grid | see `GlobalMatrix` |
| `hard-neg-only` | positives of the negatives | see `HardNegativesOnly` |
| `weak-editor`, `weak-llm` | strong models | models from the study's options; an error rate in the toy world |
| `other-backbone`, `other-backbone-vanilla` | retriever | repaired, and plainly trained, with own hyperparameters |

Variants that the paper does not have:

| name | what it does |
|---|---|
| `repair-paper` | the paper's rule: an anchor's own failures alone, opposite them always the best-scored edit |
| `repair-own` | an anchor's own failures alone |
| `repair-best` | opposite an own failure the mirror edit or the best-scored one, not one drawn anew each epoch |
| `repair-captions-batch` | edited captions are pairs of the global batch too |
| `repair-edits-batch` | all edits are pairs of the global batch too |
| `repair-mixed` | half of the time, slot 1 holds the anchor's edit, opposite the false positive it was made from |
| `repair-mirror` | opposite a false positive: the edit that mirrors the anchor's record, else the annotation |
| `repair-unmasked` | known true pairs off a grid's diagonal count as negatives, as in the paper |
| `repair-neighbours` | an anchor shares its batch with the items that it is confused with |
| `repair-reciprocal` | a caption's failure is repaired by editing the caption to fit the wrong image |
| `repair-2-rounds` | records of two rounds; the second is mined with the retriever that the first has repaired |

`repair` itself fills a grid, with equal chance, by an edit that was made from the anchor or by an own failure of the
anchor, opposite an edit of the same query. `repair-reciprocal` needs LLM calls but no images.
"""

from __future__ import annotations

from repair_hf.study.methods.method import Baseline, RepairVariant

VANILLA = Baseline("vanilla")
VARIANTS = (
    RepairVariant("repair-i2t", directions=("i2t",), tuned_as="repair-i2t"),
    RepairVariant("repair-t2i", directions=("t2i",), tuned_as="repair-t2i"),
    RepairVariant("repair"),
    RepairVariant("wo-failure", mine={"false_positives": "random"}),
    RepairVariant("wo-repair", train={"counterparts": "annotation"}),
    RepairVariant("wo-qc", synthesize={"audited": False}),
    RepairVariant("wo-pqc", synthesize={"select": "first"}),
    RepairVariant("full-matrix", train={"negatives": "batch"}),
    RepairVariant("hard-neg-only", train={"negatives": "alone"}),
    RepairVariant("weak-editor", weak="editor"),
    RepairVariant("weak-llm", weak="llm"),
    RepairVariant("other-backbone-vanilla", other_model=True, records=False, tuned_as="other-backbone-vanilla"),
    RepairVariant("other-backbone", other_model=True, tuned_as="other-backbone"),
    RepairVariant("repair-paper", train={"grids": "paper"}),
    RepairVariant("repair-own", train={"own_failures_share": 1.0}),
    RepairVariant("repair-best", train={"counterparts": "best"}),
    RepairVariant("repair-captions-batch", train={"negatives": "grid+captions"}),
    RepairVariant("repair-edits-batch", train={"negatives": "grid+edits"}),
    RepairVariant("repair-mixed", train={"slot1": "mixed"}),
    RepairVariant("repair-mirror", train={"counterparts": "reciprocal"}),
    RepairVariant("repair-unmasked", train={"known_matches": "negative"}),
    RepairVariant("repair-neighbours", train={"batches": "neighbours"}),
    RepairVariant("repair-reciprocal", reciprocal=True),
    RepairVariant("repair-2-rounds", rounds=2),
)
