"""RePair with one choice undone at a time: the paper's ablations, as options of the one pipeline.

| name | undone | our reading |
|---|---|---|
| `wo-failure` | mining | the same queries, wrong answers drawn at random; then audit and repair as ever |
| `wo-repair` | the edits | of the same records: a false positive is the hard negative, the data set's annotation stands opposite |
| `wo-qc` | the audit | every mined failure is repaired; an instruction that finds nothing to change still drops it |
| `wo-pqc` | the choice | the first of three candidates |
| `full-matrix` | the grid | see `GlobalMatrix` |
| `hard-neg-only` | what stands opposite the negatives | see `HardNegativesOnly` |
| `weak-editor`, `weak-llm` | the models | the study's options name them; in the toy world faults at a rate |
| `other-backbone`, `other-backbone-vanilla` | the retriever | repaired, and plainly trained, with hyperparameters of their own |
"""

from __future__ import annotations

from repair_hf.study.methods.method import Repair

METHODS = (
    Repair("wo-failure", mine={"false_positives": "random"}),
    Repair("wo-repair", train={"counterparts": "annotation"}),
    Repair("wo-qc", synthesize={"audited": False}),
    Repair("wo-pqc", synthesize={"select": "first"}),
    Repair("full-matrix", train={"negatives": "batch"}),
    Repair("hard-neg-only", train={"negatives": "alone"}),
    Repair("weak-editor", weak="editor"),
    Repair("weak-llm", weak="llm"),
    Repair("other-backbone-vanilla", other_model=True, records=False, tuned_as="other-backbone-vanilla"),
    Repair("other-backbone", other_model=True, tuned_as="other-backbone"),
)
