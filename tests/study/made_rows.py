"""Rows of results that no training has made, and the plan of a study in the toy world."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.plan import Plan
from repair_hf.study.results import Cell, Row
from repair_hf.study.setting import Setting, open_settings

IMAGES, CAPTIONS = 6, 12


def settings_of(*, pairs: str | None = None, llm: Any = None, editor: Any = None, **options: Any) -> list[Setting]:
    models = llm or StudyLLMOptions(), editor or StudyEditorOptions()
    return open_settings(StudyOptions(**{"size": "tiny"} | options), StudyPairsOptions(pairs), *models)


def setting(**options: Any) -> Setting:
    (found,) = settings_of(**options)
    return found


def row(cell: Cell, good: float = 0.5, *, twice: float = 1.0, **values: Any) -> Row:
    """A row whose R@1 and accuracies on near misses are about `good`, in an order that depends on the cell.

    A step encodes `twice` as many captions as one of plain training.
    """
    rng = np.random.default_rng([cell.seed, len(cell.name)])
    known: dict[str, Any] = {
        f"{way}_ranks": np.where(rng.permutation(n) < good * n, 1, 3).tolist()
        for way, n in (("i2t", IMAGES), ("t2i", CAPTIONS))
    }
    known |= {f"near_{way}": (rng.permutation(8) < good * 8).astype(int).tolist() for way in ("i2t", "t2i")}
    known |= {"near_i2t_image": [0, 0, 1, 2, 3, 4, 5, 5], "near_t2i_image": [5, 4, 3, 2, 1, 0, 0, 0]}
    known |= {"steps": 10, "images_per_step": 16.0, "texts_per_step": 16.0 * twice, "items": 320.0, "seconds": 1.0}
    known |= {"samples": 8, "llm_calls": 40, "images": 4, "dollars": 0.5, "share": 1.0, "samples_encoded": 6}
    known |= {"caption_image": (np.arange(CAPTIONS) // 2).tolist(), "options": "x", "content": "y", "commit": "z"}
    return Row(cell, **known | values)


class Found:
    """The finished cells of a plan: all, as good as a function of the cell says, or those that were added."""

    def __init__(self, good: Callable[[Cell], float] | None = None, twice: Mapping[str, float] | None = None) -> None:
        self.good, self.twice, self.rows = good, twice or {}, {}

    def __call__(self, cell: Cell) -> Row | None:
        if cell not in self.rows and self.good is not None:
            self.rows[cell] = row(cell, self.good(cell), twice=self.twice.get(cell.method, 1.0))
        return self.rows.get(cell)


def plan(wanted: list[str], found: Callable[[Cell], Row | None], **options: Any) -> Plan:
    return Plan(setting(**options), wanted, found)


def settings(cell: Cell) -> tuple:
    """Learning rate, epochs, fill, loss and grid weight of a cell."""
    return cell.learning_rate, cell.epochs, cell.fill, cell.loss, cell.grid_weight
