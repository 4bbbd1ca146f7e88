"""What is tried, what wins, and who takes whose choice."""

from dataclasses import replace
from pathlib import Path

from repair_hf.study.cells import Cell, Measured
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.setting import Knobs
from repair_hf.study.tuning import SearchSpace, tune

METHODS = load_methods()
SPACE = SearchSpace([1e-4, 3e-4], [1.0, 2.0], [1.0, 0.5])


def measured(method, knobs: Knobs) -> Measured:
    """Better the nearer to 3e-4, two epochs and lambda 0.5; of I2T and T2I one always loses what the other gains."""
    score = 1000 * knobs.learning_rate + 0.1 * knobs.epochs - 0.01 * knobs.grid_weight
    metrics = {"i2t_R@1": score + knobs.epochs, "t2i_R@1": score - knobs.epochs}
    return Measured(Cell(method.name, "validation", 0, knobs), Path(), metrics, {})


def each(method, points) -> list[list[Measured]]:
    return [[measured(method, knobs)] * 2 for knobs in points]


def tried(method: str, space: SearchSpace = SPACE, measure=each) -> list[Knobs]:
    return list(dict.fromkeys(one.cell.knobs for one in tune(METHODS, method, space, measure).tried))


def test_each_rate_is_tried_with_each_length_then_lambda_and_nothing_twice():
    points = [(1e-4, 1.0), (1e-4, 2.0), (3e-4, 1.0), (3e-4, 2.0)]
    assert tried("negclip") == tried("repair") == [Knobs(*point) for point in points]
    assert tried("repair-paper") == [*(Knobs(*point, 1.0) for point in points), Knobs(3e-4, 2.0, 0.5)]
    assert tried("vanilla", replace(SPACE, epochs=[3.0])) == [Knobs(1e-4, 3.0), Knobs(3e-4, 3.0)]


def test_lambda_is_tried_for_those_alone_that_have_the_grid_loss():
    assert {
        knobs.grid_weight
        for name in ("other-backbone-vanilla", "new-pairs-grid", "repair-t2i")
        for knobs in tried(name)
    } == {0.0}
    assert {knobs.grid_weight for knobs in tried("repair-paper")} == {1.0, 0.5}


def test_what_is_best_in_both_directions_together_wins_and_ablations_take_repairs():
    found = {name: tune(METHODS, name, SPACE, each) for name in ("vanilla", "repair", "wo-qc", "repair-grid")}
    assert found["vanilla"].knobs == Knobs(3e-4, 2.0) and len(found["vanilla"].tried) == 2 * 4
    assert found["repair-grid"].knobs == Knobs(3e-4, 2.0, 0.5) and len(found["repair-grid"].tried) == 2 * 5
    assert found["wo-qc"] == found["repair"]
    assert {one.cell.method for one in found["wo-qc"].tried} == {"repair"}


def test_without_tuning_the_first_of_each_is_taken():
    found = {name: tune(METHODS, name, SPACE, None) for name in ("laclip", "repair-paper")}
    assert found["laclip"].knobs == Knobs(1e-4, 1.0) and found["repair-paper"].knobs == Knobs(1e-4, 1.0, 1.0)
    assert not found["repair-paper"].tried


def test_of_equals_the_one_tried_first_wins():
    def equal(method, points):
        metrics = {"i2t_R@1": 0.5, "t2i_R@1": 0.5}
        return [[Measured(Cell(method.name, "validation", 0, knobs), Path(), metrics, {})] for knobs in points]

    assert tune(METHODS, "vanilla", SPACE, equal).knobs == Knobs(1e-4, 1.0)
