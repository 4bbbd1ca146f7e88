"""The rule for the default, step by step, on rows whose outcome is known."""

from collections.abc import Callable

import pandas as pd
import pytest

from repair_hf.study.methods import CANDIDATES, PLAIN
from repair_hf.study.results import Cell
from repair_hf.study.rule import apply_rule
from repair_hf.study.statistics import lines_of
from tests.study.made_rows import plan, rows

NAMES = [method.name for method in CANDIDATES]
FLAT = {"R@1": 0.5, "contrast": 0.5, "kept": 0.5}


def apply(good: Callable[[Cell], dict[str, float]], **changes: dict) -> tuple[str, pd.Series]:
    """Apply the rule to two worlds; return what it says, and the verdicts. `changes` are columns by method."""
    worlds = []
    for learning_rates in ([1e-4, 2e-4], [1e-4, 3e-4]):
        found = rows(plan(methods=NAMES, seeds=3, learning_rates=learning_rates), good)
        for cell, one in found.items():
            one.values |= changes.get(cell.method.replace("-", "_"), {})
        worlds.append(lines_of(found.values(), "validation")["tiny"])
    finding = apply_rule(worlds)
    return finding.note, finding.table.set_index("candidate")["verdict"]


def noisy(good: Callable[[Cell], dict[str, float]], method: str) -> Callable[[Cell], dict[str, float]]:
    """A method is a little better on average, by one lucky seed."""

    def lucky(cell: Cell) -> dict[str, float]:
        more = 0.06 if (cell.method, cell.split, cell.seed) == (method, "validation", 0) else 0.0
        return {name: share + more for name, share in good(cell).items()}

    return lucky


def better(**by: float) -> Callable[[Cell], dict[str, float]]:
    """All measures of these methods are so much better than those of plain training."""
    return lambda cell: {name: 0.5 + by.get(cell.method.replace("-", "_").replace(".", "_"), 0.0) for name in FLAT}


def test_the_highest_score_wins_if_nothing_ties():
    note, verdicts = apply(better(repair_both=0.4, repair_batch=0.1))
    assert note.startswith("The default is `repair-both`, blended at 1.")
    assert verdicts["repair-both"] == "winner" and verdicts["repair-batch"] == "behind"


def test_of_the_tied_no_grid_loss_is_the_simplest_and_then_the_edits():
    by = dict.fromkeys(("repair_batch", "repair_grid", "paper_both"), 0.3)
    note, verdicts = apply(noisy(better(**by), "paper-both"))
    assert "`repair-batch`" in note and verdicts["repair-batch"] == "winner"
    assert verdicts["paper-both"] == "best" and verdicts["repair-grid"] == "tied"
    _, verdicts = apply(noisy(better(**by | {"repair_batch": 0.0}), "paper-both"))
    assert verdicts["repair-grid"] == "winner"


def test_then_fewer_items_per_step_and_then_the_higher_score():
    by = noisy(better(repair_both=0.3, repair_both_anchors=0.3), "repair-both")
    note, verdicts = apply(by, repair_both_anchors={"items_per_step": 200.0})
    assert verdicts["repair-both-anchors"] == "winner" and verdicts["repair-both"] == "best"
    _, verdicts = apply(by)
    assert verdicts["repair-both"] == "winner" and verdicts["repair-both-anchors"] == "tied"


@pytest.mark.parametrize("measure", ["R@1", "kept"])
def test_a_candidate_that_loses_recall_or_what_is_kept_is_left_out(measure):
    def good(cell: Cell) -> dict[str, float]:
        return {name: 0.95 for name in FLAT} | {measure: 0.1} if cell.method == "repair-both" else FLAT

    note, verdicts = apply(good)
    assert verdicts["repair-both"] == "left out" and verdicts["repair-batch"] == "winner"
    assert "Most candidates tie with the best." in note and "Nothing is gained over plain training." in note


def test_a_blend_needs_a_higher_score_and_no_lower_recall_in_a_world():
    def good(cell: Cell) -> dict[str, float]:
        kept = {1.0: 0.5, 0.8: 0.7, 0.6: 0.9}[cell.blend]
        recall = {1.0: 0.8, 0.8: 0.8, 0.6: 0.75}[cell.blend]
        return {"R@1": recall, "contrast": 0.8, "kept": kept} if cell.method == "repair-batch" else FLAT

    assert apply(good)[0].startswith("The default is `repair-batch`, blended at 0.8.")
    assert apply(lambda cell: good(cell) | {"kept": 0.5})[0].startswith("The default is `repair-batch`, blended at 1.")


def test_there_is_no_rule_without_plain_training_or_candidates():
    found = rows(plan(methods=["laclip"], learning_rates=[1e-4, 2e-4]), lambda cell: {})
    lines = lines_of(found.values(), "validation")["tiny"]
    assert PLAIN in lines and apply_rule([lines]) is None
