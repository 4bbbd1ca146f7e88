"""Margins and metrics of the published compositional benchmarks.

Publications use different metrics, so each has its own name:

| key | meaning |
|---|---|
| `vg_relation_micro` | accuracy over all cases |
| `vg_relation_macro_all` | mean over all relations |
| `vg_relation_micro_excl157` | without the authors' list of 157 relations that are symmetric or otherwise unfit |
| `vg_relation_macro_excl157` | mean over the other relations: the authors' headline |
| `vg_attribution_micro`, `vg_attribution_macro_all` | accuracy over all cases; mean over all pairs of attributes |
| `vg_attribution_macro_min25` | mean over the pairs with at least 25 cases: the authors' headline |
| `sugarcrepe_macro`, `sugarcrepe_macro_kinds` | mean over the categories; mean over add, replace and swap |
| `sugarcrepe_pp_macro`, ... | the same for SugarCrepe++: both true captions must beat the false one |
| `winoground_text`, `winoground_image` | each picture is nearer to its own caption; each caption to its own picture |
| `winoground_group` | both |

A tie is wrong, as in ARO's code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from repair_hf.evaluation.cases import Metric, macro, micro_and_macro

# Number of cases in each file of the refined benchmark.
SUGARCREPE = {
    "add_att": 692,
    "add_obj": 2062,
    "replace_att": 788,
    "replace_obj": 1652,
    "replace_rel": 1406,
    "swap_att": 666,
    "swap_obj": 245,
}
KINDS = ("add", "replace", "swap")
MIN_CASES = 25  # of a pair of attributes in the headline


def relation_metrics(groups: Sequence[str]) -> tuple[Metric, ...]:
    """Return the four metrics of VG-Relation; only two if all relations are on the authors' list."""
    every = tuple(sorted(set(groups)))
    kept = tuple(name for name in every if name not in EXCLUDED)
    without = (Metric("micro_excl157", "accuracy", kept), macro("macro_excl157", kept)) if kept else ()
    return (Metric("micro", "accuracy"), macro("macro_all", every), *without)


def attribution_metrics(groups: Sequence[str]) -> tuple[Metric, ...]:
    """Return the three metrics of VG-Attribution; the headline only if a pair is frequent enough."""
    count = Counter(groups)
    frequent = tuple(sorted(pair for pair in count if count[pair] >= MIN_CASES))
    headline = (macro("macro_min25", frequent),) if frequent else ()
    return (Metric("micro", "accuracy"), macro("macro_all", sorted(count)), *headline)


def sugarcrepe_metrics(groups: Sequence[str]) -> tuple[Metric, ...]:
    """Return the metrics by category and kind."""
    categories = [name for name in SUGARCREPE if name in groups]
    by_kind = {kind: [name for name in categories if name.startswith(kind)] for kind in KINDS}
    by_kind = {kind: names for kind, names in by_kind.items() if names}
    weights = [1 / len(by_kind) / len(names) for names in by_kind.values() for _ in names]
    return (
        *micro_and_macro(categories),
        *(macro(kind, names) for kind, names in by_kind.items()),
        Metric("macro_kinds", "accuracy", tuple(name for names in by_kind.values() for name in names), tuple(weights)),
    )


def winoground_metrics(groups: Sequence[str]) -> tuple[Metric, ...]:
    """Return each measure over all cases."""
    return tuple(Metric(measure, measure) for measure in ("text", "image", "group"))


def judge_winoground(scores: np.ndarray) -> dict[str, np.ndarray]:
    """Map (n, 2, 2) cosines, pictures by captions, to the smaller of the two margins of each measure."""
    true = np.diagonal(scores, axis1=1, axis2=2)  # (n, 2)
    text = np.minimum(true[:, 0] - scores[:, 0, 1], true[:, 1] - scores[:, 1, 0])
    image = np.minimum(true[:, 0] - scores[:, 1, 0], true[:, 1] - scores[:, 0, 1])
    return {"text": text, "image": image, "group": np.minimum(text, image)}


# Relations that ARO's authors exclude from VG-Relation's headline: symmetric or otherwise unfit to swap. The list is
# from their notebook (mertyg/vision-language-models-are-bows, MIT); they publish no rule for it.
EXCLUDED = frozenset(
    " ".join(name.split())
    for name in """
    adjusting, around, attached to, beside, between, bigger than, biting, boarding, brushing, by, chewing, cleaning,
    climbing, close to, coming from, coming out of, contain, crossing, dragging, draped over, drinking, drinking from,
    driving, driving down, driving on, eating from, eating in, enclosing, exiting, facing, filled with, floating in,
    floating on, flying, flying above, flying in, flying over, flying through, full of, going down, going into, going
    through, grazing in, growing in, growing on, guiding, hanging from, hanging in, hanging off, hanging over, higher
    than, holding onto, hugging, in between, jumping off, jumping on, jumping over, kept in, larger than, leading,
    leaning over, leaving, licking, longer than, looking in, looking into, looking out, looking over, looking through,
    lying next to, lying on top of, making, mixed with, mounted on, moving, near, next to, of, on the back of, on the
    edge of, on the front of, on the other side of, on the side of, opening, painted on, parked at, parked beside,
    parked by, parked in, parked in front of, parked near, parked next to, perched on, petting, piled on, playing,
    playing in, playing on, playing with, pouring, reaching for, reading, reflected on, riding on, running in, running
    on, running through, seen through, sitting behind, sitting beside, sitting by, sitting in front of, sitting near,
    sitting next to, sitting under, skiing down, skiing on, sleeping in, sleeping on, smiling at, sniffing, splashing,
    sprinkled on, stacked on, standing against, standing around, standing behind, standing beside, standing in front
    of, standing near, standing next to, staring at, stuck in, surrounding, swimming in, swinging, talking to, topped
    with, touching, traveling down, traveling on, tying, typing on, underneath, wading in, waiting for, walking across,
    walking by, walking down, walking next to, walking through, with, working in, working on, worn on, wrapped around,
    wrapped in
    """.split(",")
)
