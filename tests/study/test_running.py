"""Which cells there are and what they are compared with; their names."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest

from repair_hf.records.dataset import NoRecords
from repair_hf.study.cells import WEIGHTS, Cell, Measured
from repair_hf.study.kept import KeptCells
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.report import left_out
from repair_hf.study.running import Study, compute_ratio
from repair_hf.study.setting import Knobs
from repair_hf.study.spending import Cost
from repair_hf.study.tuning import TUNING_SEEDS, SearchSpace
from repair_hf.study.work_sharing import WorkSharing
from repair_hf.synthesis.options import LLMOptions

PLAIN = {"images_per_step": 128.0, "texts_per_step": 128.0}


@pytest.mark.parametrize(
    "images, texts, ratio",
    [
        (128, 128, 1.0),  # laclip: other items, as many
        (128, 255, 2.0),  # negclip
        (128.4, 128, 1.0),  # a hundredth is forgiven
        (150, 128, 2.0),  # 1.17
        (384, 128, 3.0),  # simclr
        (100, 120, 1.0),  # fewer
    ],
)
def test_equal_compute_is_the_larger_of_both_rounded_up(images, texts, ratio):
    assert compute_ratio({"images_per_step": images, "texts_per_step": texts}, PLAIN) == ratio


def test_each_cell_has_a_folder_of_its_own():
    knobs = [Knobs(lr, epochs, weight) for lr in (1e-4, 3e-4) for epochs in (1, 1.5) for weight in (0, 0.5, 1)]
    parts = product(["repair"], ("test", "validation"), (0, 1), knobs, (0.2, 1.0))
    cells = {Cell(*part) for part in parts} | {Cell("base", "test")}
    assert len({cell.name for cell in cells}) == len(cells)
    assert all("/" not in cell.name for cell in cells)


class MadeUp(Study):
    """A study without training: longer training needs a lower learning rate; SimCLR encodes 3 times the images."""

    def _measure(self, cell, method, *, keep_weights=False):
        best = cell.knobs is not None and cell.knobs.learning_rate == (3e-4 if cell.knobs.epochs < 3 else 1e-4)
        metrics = {"i2t_R@1": float(best), "t2i_R@1": float(best)}
        training = {"images_per_step": 384.0 if cell.method == "simclr" else 128.0, "texts_per_step": 128.0}
        return Measured(cell, Path("/nowhere"), metrics, training)


@pytest.fixture
def setting(tmp_path) -> SimpleNamespace:
    """What `Study` asks of a setting where nothing is trained."""
    sharing, splits = WorkSharing(tmp_path / "locks"), {"split": "test", "validation_split": "validation"}
    made = {"llm": LLMOptions("world/oracle"), "has_records": lambda method: False}
    return SimpleNamespace(output=tmp_path, sharing=sharing, keep_models=False, kept=KeptCells(), **splits, **made)


def test_what_is_still_to_be_made_comes_first_and_tables_keep_their_order(setting, tmp_path):
    """One process makes at a time, and the others train meanwhile: so nobody waits for it in the end."""
    (tmp_path / "products" / "laclip").mkdir(parents=True)
    (tmp_path / "products" / "laclip" / "summary.json").write_text("{}")
    begun = []
    study = MadeUp(
        setting, load_methods(), ["simclr", "laclip", "wo-qc"], SearchSpace([3e-4], [1.0], [0.5]), tune=False
    )
    study.products.of = lambda method, knobs: {}
    study._run_all = lambda parts: begun.append(list(parts)) or {name: parts[name]() for name in parts}
    [results] = study.run(1)
    assert ["wo-qc", "vanilla", "simclr", "laclip"] in begun
    assert list(results.rows) == ["vanilla", "simclr", "laclip", "wo-qc"]


class Empty(MadeUp):
    """No failure of images becomes a record."""

    def _measure(self, cell, method, *, keep_weights=False):
        if cell.method == "repair-i2t":
            raise NoRecords("runs/x holds no records")
        return super()._measure(cell, method, keep_weights=keep_weights)


@pytest.mark.parametrize("tune", [True, False])
def test_a_method_that_has_nothing_to_train_on_is_left_out_and_named_once(tune, setting):
    lines = []
    grid = SearchSpace([3e-4, 1e-4], [1.0], [0.5])
    study = Empty(setting, load_methods(), ["repair-i2t", "simclr"], grid, tune=tune, points=[0.5], tell=lines.append)
    study.products = SimpleNamespace(of=lambda method, knobs: {}, lacks=lambda method: False)
    [*_, results] = study.run(2)
    assert list(results.rows) == ["vanilla", "simclr"]
    assert results.left_out == {"repair-i2t": "runs/x holds no records"}
    assert [line for line in lines if "left out" in line] == ["left out repair-i2t: runs/x holds no records"]
    assert "`repair-i2t`: runs/x" in left_out(results).note


@pytest.mark.parametrize("tune", [True, False])
@pytest.mark.parametrize(
    "lacking, rows",
    [
        ("simclr--test--lr0.0003--epochs1--share0.5", ["vanilla", "laclip"]),
        ("other-backbone-vanilla", ["vanilla", "simclr", "laclip"]),
        ("vanilla", None),
    ],
)
def test_a_cell_that_is_not_there_leaves_out_what_needs_it(lacking, rows, tune, setting):
    class Incomplete(MadeUp):
        def _measure(self, cell, method, *, keep_weights=False):
            if cell.name.startswith(lacking):
                raise NoRecords(f"{cell.name} has not been trained yet")
            found = super()._measure(cell, method)
            few = {"simclr": {"drawn": Cost(9, 0, 0, 0, 0, None)}, "laclip": {"rewrite": Cost(0, 0, 0, 0, 0, None)}}
            return replace(found, made=few.get(cell.method, {}))

    wanted, points = ["simclr", "laclip", "other-backbone"][: 3 if rows is None or len(rows) > 2 else 2], [0.5, 4]
    space = SearchSpace([3e-4, 1e-4], [1.0], [0.5])
    study = Incomplete(setting, load_methods(), wanted, space, tune=tune, points=points)
    study.products = SimpleNamespace(lacks=lambda method: False)
    if rows is None:
        with pytest.raises(NoRecords, match="needs plain training, but vanilla--.* has not been trained yet"):
            list(study.run(1))
        return
    [results] = study.run(1)
    assert list(results.rows) == rows and set(study.wanted) - set(rows) == set(results.left_out)
    assert set(results.sweep) <= {"simclr"}  # nothing was made for the others


def test_a_sweep_trains_on_shares_and_on_the_numbers_of_samples_that_there_are(setting):
    class Made(MadeUp):
        def _measure(self, cell, method, *, keep_weights=False):
            found = super()._measure(cell, method)
            return found if method is None else replace(found, made={"variant": Cost(100, 0, 0, 0, 0, None)})

    space = SearchSpace([3e-4], [1.0], [0.5])
    study = Made(setting, load_methods(), ["simclr"], space, tune=False, points=[0.5, 20, 500])
    [results] = study.run(1)
    assert {point: cells[0].cell.share for point, cells in results.sweep["simclr"].items()} == {
        0.5: 0.5,
        20: 0.2,
        1: 1,
    }


@pytest.mark.parametrize("tune", [True, False])
def test_plain_training_of_each_length_has_a_learning_rate_of_its_own_choice(tune, setting):
    study = MadeUp(setting, load_methods(), ["simclr"], SearchSpace([3e-4, 1e-4], [1.0], [0.5]), tune=tune)
    [results] = study.run(1)
    row, for_long = results.rows["simclr"], 1e-4 if tune else 3e-4
    assert [cell.cell.knobs for cell in row.cells + row.same_steps] == [Knobs(3e-4, 1.0)] * 2
    assert [cell.cell.knobs for cell in row.same_compute] == [Knobs(for_long, 3.0)]
    assert results.rows["vanilla"].cells == results.rows["vanilla"].same_steps


def test_plain_training_is_its_own_baseline_at_the_length_that_it_chose(setting):
    """All rates are tried with all lengths."""

    class Fickle(MadeUp):
        def _measure(self, cell, method, *, keep_weights=False):
            found = super()._measure(cell, method)
            if cell.knobs is None:
                return found
            score = {(1e-4, 2.0): 0.5, (3e-4, 2.0): 0.4, (1e-4, 1.0): 0.9, (3e-4, 1.0): 0.6}
            r1 = score.get((cell.knobs.learning_rate, cell.knobs.epochs), 0.1)
            return replace(found, metrics={"i2t_R@1": r1, "t2i_R@1": r1})

    study = Fickle(setting, load_methods(), ["simclr"], SearchSpace([1e-4, 3e-4], [2.0, 1.0], [0.5]), tune=True)
    [results] = study.run(1)
    plain = results.rows["vanilla"]
    assert plain.cells == plain.same_steps == plain.same_compute and plain.cells[0].cell.knobs == Knobs(1e-4, 1.0)
    assert results.rows["simclr"].same_steps == plain.cells
    assert [knobs for _, knobs in results.lengths] == [3.0]  # of another length it is chosen anew


def test_weights_of_what_lost_go_and_those_of_what_won_stay(setting, tmp_path):
    class Weighty(MadeUp):
        def _measure(self, cell, method, *, keep_weights=False):
            found = replace(super()._measure(cell, method), folder=tmp_path / "cells" / cell.name)
            if keep_weights and cell not in self._measured:
                (found.folder / WEIGHTS).mkdir(parents=True)
            return self._measured.setdefault(cell, found)

    wanted = ["wo-qc", "repair", "hard-neg-only"]  # an ablation before the method whose choice it takes
    study = Weighty(setting, load_methods(), wanted, SearchSpace([1e-4, 3e-4], [1.0], [1.0, 0.5]), tune=True)
    choices = {name: study._tune(name, study.space) for name in study.wanted}
    kept = {path.parent.name.partition("--")[0] for path in tmp_path.glob(f"cells/*/{WEIGHTS}")}
    assert kept == {"vanilla", "repair"} and len(list(tmp_path.glob(f"cells/*/{WEIGHTS}"))) == 2 * TUNING_SEEDS
    assert (tmp_path / "cells" / Cell("repair", "validation", 0, choices["repair"].knobs).name / WEIGHTS).is_dir()
    assert choices["wo-qc"].knobs == choices["repair"].knobs and choices["hard-neg-only"].knobs.grid_weight > 0
