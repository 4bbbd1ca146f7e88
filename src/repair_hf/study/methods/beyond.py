"""Beyond the paper: RePair with choices that it did not try.

| name | what it does |
|---|---|
| `repair-mixed` | half of the time slot 1 holds the anchor's own edit, beside the very false positive that it was made of |
| `repair-mirror` | only the edit that mirrors the anchor's record stands opposite a false positive, else the annotation |
| `repair-unmasked` | known true pairs off a grid's diagonal count as negatives, as the paper's rule has it |
| `repair-neighbours` | an anchor meets those that it is confused with in its batch |
| `repair-reciprocal` | a caption's wrong image is answered by a caption: the caption itself, edited to fit that image |
| `repair-2-rounds` | records of two rounds together, the second mined with a retriever that the first has repaired |

RePair itself takes the mirror first, then another edit of that query, then the annotation. `repair-reciprocal` makes no image: LLM calls
take their place, the caption becomes one of that image's own false positives, and what stands opposite a false caption is annotated.
"""

from __future__ import annotations

from repair_hf.study.methods.method import Repair

METHODS = (
    Repair("repair-mixed", train={"slot1": "mixed"}),
    Repair("repair-mirror", train={"counterparts": "reciprocal"}),
    Repair("repair-unmasked", train={"known_matches": "negative"}),
    Repair("repair-neighbours", train={"batches": "neighbours"}),
    Repair("repair-reciprocal", reciprocal=True),
    Repair("repair-2-rounds", rounds=2),
)
