"""Rows of results that no training has made, and a study in the toy world."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.plan import Plan
from repair_hf.study.results import BASE, BLENDS, Cell, Row
from repair_hf.study.setting import Setting

IMAGES, CAPTIONS, CASES, KEPT = 40, 80, 60, 30
Good = Callable[[Cell], Mapping[str, float]]  # shares of right answers: `R@1`, `contrast`, `kept`


def setting(*, pairs: str | None = None, llm: Any = None, editor: Any = None, **options: Any) -> Setting:
    models = llm or StudyLLMOptions(), editor or StudyEditorOptions()
    return Setting(StudyOptions(**{"size": "tiny"} | options), StudyPairsOptions(pairs), *models)


def plan(**options: Any) -> Plan:
    return Plan(setting(**options))


def row(cell: Cell, good: Mapping[str, float], **values: Any) -> Row:
    """A row with about these shares of right answers: the first queries of an order of the seed are right."""
    rng = np.random.default_rng([cell.seed, 7])

    def right(share: float, count: int) -> np.ndarray:
        return rng.permutation(count) < round(share * count)

    shares = {"R@1": 0.5, "contrast": 0.5, "kept": 0.5} | dict(good)
    sizes = {"i2t": ("R@1", IMAGES), "t2i": ("R@1", CAPTIONS), "kept_i2t": ("kept", KEPT), "kept_t2i": ("kept", KEPT)}
    found: dict[str, Any] = {
        f"{way}_ranks": np.where(right(shares[kind], count), 1, 3).tolist() for way, (kind, count) in sizes.items()
    }
    found |= {
        f"contrast_{kind}": right(shares["contrast"], CASES).astype(int).tolist() for kind in ("caption", "picture")
    }
    if cell.method == BASE:
        found |= {"caption_image": (np.arange(CAPTIONS) // 2).tolist(), "kept_caption_image": list(range(KEPT))}
        found |= {"contrast_image": (np.arange(CASES) % IMAGES).tolist()}
    known = {"steps": 10, "items_per_step": 300.0, "seconds": 1.0, "code": "x", "commit": "z"}
    known |= {"samples": 8, "llm_calls": 40, "images": 4}
    return Row(cell, **known | found | values)


def rows(plan: Plan, good: Good) -> dict[Cell, Row]:
    """Finish a study: as many times as something new is known, the rows of all its cells, with all blends."""
    found: dict[Cell, Row] = {}
    while missing := [cell for cell in plan.cells(found) if cell not in found]:
        for cell in missing:
            for blend in BLENDS:
                one = replace(cell, blend=blend)
                found[one] = row(one, good(one))
    return found
