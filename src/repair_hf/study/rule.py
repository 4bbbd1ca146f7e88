"""The rule for the default of `train`, as docs/study.md states it; it reads the validation split of both worlds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE
from repair_hf.study.methods import CANDIDATES, PLAIN
from repair_hf.study.results import BLENDS
from repair_hf.study.statistics import MEASURES, Estimate, Lines, over_worlds
from repair_hf.training.options import WITH_GRID

WORLDS = ("small", "large")


def apply_rule(worlds: Sequence[Lines]) -> Finding | None:
    """Choose among the candidates that are finished in all worlds, from the lines of their validation splits."""
    known = {one.name: one for one in CANDIDATES if all({PLAIN, one.name} <= lines.keys() for lines in worlds)}
    if not known:
        return None
    gains = {name: [lines[name].gains(lines[PLAIN]) for lines in worlds] for name in known}
    scores = {name: over_worlds([each["score"] for each in found]) for name, found in gains.items()}
    # step 1
    losing = {name for name in known for each in gains[name] if min(each["R@1"].bounds[1], each["kept"].bounds[1]) < 0}
    # step 2
    best = max([name for name in known if name not in losing] or known, key=lambda name: scores[name].mean)
    distance = {name: scores[name] - scores[best] for name in known}
    tied = [name for name in known if name == best or (name not in losing and distance[name].bounds[1] >= 0)]
    # step 3
    items = {name: statistics.fmean(lines[name].row["items_per_step"] for lines in worlds) for name in known}

    def simplicity(name: str) -> tuple[float, ...]:
        method = known[name]
        return method.loss in WITH_GRID, method.fill == "paper", round(items[name]), -scores[name].mean

    winner = min(tied, key=simplicity)
    rows = []
    for name in sorted(known, key=lambda name: -scores[name].mean):
        verdict = "left out" if name in losing else "tied" if name in tied else "behind"
        verdict = "winner" if name == winner else "best" if name == best else verdict
        each = [str(world[measure]) for world in gains[name] for measure in MEASURES]
        behind = NONE if name == best else str(distance[name])
        rows.append([name, str(scores[name]), behind, *each, f"{items[name]:,.0f}", verdict])
    heads = [f"{lines[PLAIN].cell.data}: {measure}" for lines in worlds for measure in MEASURES]
    table = pd.DataFrame(rows, columns=["candidate", "score", "from the best", *heads, "items per step", "verdict"])
    said = [f"The default is `{winner}`, blended at {_blend(winner, worlds, gains[winner]):g}."]
    said += ["Every candidate loses R@1 or what is kept."] if len(losing) == len(known) else []
    said += ["Most candidates tie with the best."] if len(tied) > len(known) / 2 else []
    said += [] if scores[winner].bounds[0] > 0 else ["Nothing is gained over plain training."]  # step 4
    return Finding(
        "default", "Which default", " ".join([*said, "Gains are over plain training, on validation."]), table
    )


def _blend(name: str, worlds: Sequence[Lines], whole: Sequence[Mapping[str, Estimate]]) -> float:
    """Return the blend of a candidate: 1, unless another has a higher score and no lower R@1 in a world (step 5)."""
    best, most = 1.0, statistics.fmean(each["score"].mean for each in whole)
    for blend in BLENDS[1:]:
        found = [lines[f"{name}, blend {blend:g}"].gains(lines[PLAIN]) for lines in worlds]
        score = statistics.fmean(each["score"].mean for each in found)
        keeps = all(one["R@1"].mean >= other["R@1"].mean for one, other in zip(found, whole, strict=True))
        if keeps and score > most:
            best, most = blend, score
    return best
