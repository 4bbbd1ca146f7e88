"""`repair-hf run`: two rounds in a tiny toy world, a second run, a kill; what a later round leaves out."""

import json
import shutil
import signal
import time
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest
import yaml
from children import Child
from datasets import Dataset

from repair_hf.analysis.tables import mean_gain, round_rows
from repair_hf.cli.main import main
from repair_hf.llm.ledger_file import FILE, read_calls
from repair_hf.pairs.images import Inspection, inspect_images
from repair_hf.records.dataset import load_dropped, load_records
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.rounds import records_of_rounds

NOISY = "world/oracle?keeps_bad=0.3&rejects_good=0.3"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    """A folder of recipes for a world of 20 pictures, with an audit that errs, so that something is dropped."""
    folder = tmp_path_factory.mktemp("rounds") / "tiny"
    folder.mkdir()
    world = str(folder.parent / "world")
    base = {"pairs": world, "model": "world/base"}
    stages = {
        "world": {"output": world, "train": 20, "validation": 8, "test": 1},
        "mine": base | {"max_queries": 10, "d_i2t": 2},
        "synthesize": base | {"failures": "x", "llm": NOISY, "editor": "world", "candidates": 1},
        "train": base
        | {"records": "x", "max_steps": 2, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "use_cpu": True},
        "evaluate": base | {"split": "validation"},
    }
    for name, options in stages.items():
        write(folder, name, {"output": str(first(folder.parent / "out", name))} | options)
    return folder


def first(out: Path, name: str) -> Path:
    """The output of a recipe."""
    return out / {"mine": "failures", "synthesize": "records", "train": "retriever"}.get(name, name)


def write(recipe: Path, name: str, options: dict) -> None:
    (recipe / f"{name}.yaml").write_text(yaml.safe_dump(options))


def read(recipe: Path, name: str) -> dict:
    return yaml.safe_load((recipe / f"{name}.yaml").read_text())


def copied(recipe: Path, folder: Path) -> Path:
    """Copy a recipe, with its outputs in a folder of their own, `out`."""
    shutil.copytree(recipe, folder / "recipe")
    for name in ("mine", "synthesize", "train"):
        write(folder / "recipe", name, read(recipe, name) | {"output": str(first(folder / "out", name))})
    return folder / "recipe"


@pytest.fixture(scope="module")
def words(recipe) -> list[str]:
    return ["run", str(recipe), "--rounds", "2", "--min-gain", "-100"]


@pytest.fixture(scope="module")
def whole(words, recipe) -> tuple[Path, str, list[int]]:
    """The folder of a run of two rounds, what it showed, and how many images each loading of pairs checked."""
    checked = []

    def check(images: Dataset) -> list[Inspection]:
        checked.append(len(images))
        return inspect_images(images)

    with redirect_stdout(StringIO()) as shown, pytest.MonkeyPatch.context() as patch:
        patch.setattr("repair_hf.pairs.dataset.inspect_images", check)
        assert main(words) == 0
    return recipe.parent / "out", shown.getvalue(), checked


@pytest.fixture(scope="module")
def done(whole) -> Path:
    return whole[0]


def stamps(folder: Path) -> dict[Path, int]:
    """The times of the files below a folder.

    Left out are the comparison of several models, which is made at each run, and the ledger and images of all rounds.
    """
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    paths = [path for path in paths if FILE not in path.name and not {"candidates", "evaluate"} & set(path.parts)]
    return {path: path.stat().st_mtime_ns for path in paths}


def names(table) -> list[tuple[str, ...]]:
    return list(zip(*(table[name][:] for name in ("direction", "q_id", "fp_id")), strict=True))


@pytest.mark.slow
def test_goes_on_after_a_kill_in_its_second_round(recipe, done, tmp_path):
    made, out = copied(recipe, tmp_path), tmp_path / "out"
    words = ["run", str(made), "--rounds", "2", "--min-gain", "-100"]
    child = Child(main, words)
    while not answers(out / "round-2"):
        assert child.poll() is None, child.said()
        time.sleep(0.01)
    assert child.kill() == -signal.SIGKILL and not (out / "rounds.json").exists()
    places = [*(first(out, name) for name in ("mine", "synthesize", "train")), out / "round-1"]
    before = {path: when for place in places for path, when in stamps(place).items()}
    assert main(words) == 0
    after = stamps(out)
    assert len(before) > 10 and {path: after[path] for path in before} == before
    for number in ("", "round-2"):  # what was made is what an uninterrupted run makes
        assert names(load_records(out / number / "records")) == names(load_records(done / number / "records"))


@pytest.mark.slow
def test_a_second_run_makes_nothing_again(done, words, capsys):
    first = stamps(done)
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert {path for path, when in stamps(done).items() if first.get(path) != when} == {done / "rounds.json"}
    assert "stopped after 2 rounds, as requested" in shown and "evaluated on the split `validation`" in shown


def test_a_later_round_takes_up_nothing_that_an_earlier_one_holds(done):
    places = [done / "records", done / "round-2" / "records"]
    first, second = ([*names(load_records(place)), *names(load_dropped(place))] for place in places)
    assert len(load_dropped(places[0])) and second and not set(first) & set(second)
    mined = json.loads((done / "round-2" / "records" / "summary.json").read_text())["directions"]
    assert sum(found["mined"] for found in mined.values()) == len(second)
    for number, place in enumerate(places, 1):
        assert set(load_records(place)["round"]) == {number}


def test_trains_the_newest_checkpoint_on_all_records_and_reports_what_the_stages_measured(done):
    out = done
    config = yaml.safe_load((out / "round-2" / "retriever" / "config.yaml").read_text())
    assert config["model"] == str(out / "retriever")
    assert config["records"] == [str(out / "records"), str(out / "round-2" / "records")]
    both = load_records(config["records"])
    assert len(both) == sum(len(load_records(place)) for place in config["records"]) == len(set(both["record_id"]))
    table = json.loads((out / "rounds.json").read_text())
    assert [each["round"] for each in table["rounds"]] == [0, 1, 2] and table["split"] == "validation"
    for number in (1, 2):
        metrics = json.loads((out / f"round-{number}" / "evaluate" / "metrics.json").read_text())
        assert table["rounds"][number]["metrics"] == metrics["retriever"] and metrics["plain"]["n_images"] == 8
        assert table["rounds"][number]["plain"] == metrics["plain"]
        assert table["rounds"][number]["gain"] == mean_gain(
            table["rounds"][number - 1]["metrics"], metrics["retriever"]
        )


def test_the_images_of_a_split_are_checked_once_for_all_stages_and_rounds(whole):
    assert sorted(whole[2]) == [8, 20]


def test_each_round_is_compared_with_as_many_steps_without_records_from_the_same_base(whole, capsys):
    out, shown, _ = whole
    configs = [yaml.safe_load((out / f"round-{n}" / "plain" / "config.yaml").read_text()) for n in (1, 2)]
    assert [each["model"] for each in configs] == ["world/base", str(out / "round-1" / "plain")]
    assert [each["records"] for each in configs] == [None, None]
    for number in (1, 2):
        compared = json.loads((out / f"round-{number}" / "evaluate" / "differences.json").read_text())["repair"]
        assert [(one["model"], one["reference"]) for one in compared] == [("retriever", "plain")]
    assert "stopped after 2 rounds, as requested" in shown and "evaluated on the split `validation`" in shown
    below = " ".join(shown[shown.rindex("mean") :].split())  # the table of rounds
    assert "Did repair help? retriever − plain: undecided (8 images are too few). I2T R@1 " in below
    assert main(["analyze", str(out), "--output", str(out.parent / "report")]) == 0
    shown = capsys.readouterr().out
    table = shown[: shown.index("plain was trained without records")].splitlines()[:-1]
    assert "round-2--evaluate--retriever − " in " ".join(shown.split()) and max(map(len, table)) <= 80


def test_stops_when_a_round_gains_too_little(done, words, capsys):
    assert main([*words, "--min-gain", "100"]) == 0
    shown = capsys.readouterr().out
    assert "stopped because round 1 gained" in shown and "less than --min-gain 100" in shown and "round-2" not in shown


@pytest.mark.slow
def test_a_first_round_made_by_itself_stays_and_ceilings_hold_for_all_rounds_together(recipe, tmp_path, capsys):
    """Its failures and records are those of `mine` and `synthesize`, typed with the recipe."""
    out, tight = tmp_path / "out", copied(recipe, tmp_path)
    assert main(["world", "build", "--config", str(tight / "world.yaml")]) == 0
    assert main(["mine", "--config", str(tight / "mine.yaml")]) == 0
    words = ["--config", str(tight / "synthesize.yaml"), "--failures", str(out / "failures")]
    assert main(["synthesize", *words]) == 0
    paid, before = answers(out), stamps(out)
    assert paid > 20
    few = {"max_usd": 1.5, "max_calls": paid + 5, "concurrency": 1}
    write(tight, "synthesize", read(tight, "synthesize") | few)
    assert main(["run", str(tight), "--rounds", "2", "--min-gain", "-100"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("$ repair-hf synthesize ") == 2  # round 1 may ask again: nothing was trained on its records
    assert f"Round 2: --max-calls {paid + 5} is reached: {paid + 5} answers and images are paid" in shown.err
    assert str(tight / "synthesize.yaml") in shown.err and f"--ledger {out / 'records' / FILE}" in shown.out
    assert answers(out) == paid and answers(out / "round-2") == 5
    after = stamps(out)
    assert before and {path: after.get(path) for path in before} == before
    assert (out / "retriever" / "summary.json").is_file() and (out / "round-1" / "evaluate").is_dir()


def answers(round_folder: Path) -> int:
    """Return how many answers a round has paid for, from the ledger of the first one."""
    is_first = not round_folder.name.startswith("round-")
    ledger = (round_folder if is_first else round_folder.parent) / "records" / FILE
    with suppress(UserError):  # it is about to be made
        calls = read_calls(ledger, "." if is_first else f"../{round_folder.name}/records")
        return sum(call["state"] == "answered" for call in calls)
    return 0


def test_all_rounds_count_in_their_order(tmp_path):
    rounds = [tmp_path / f"round-{number}" / "records" for number in (2, 10)]
    for folder in rounds:
        folder.mkdir(parents=True)
    for other in ("round-1-old", "round-"):  # somebody's copy
        (tmp_path / other / "records").mkdir(parents=True)
    assert records_of_rounds(tmp_path) == rounds


def test_names_of_a_round_twice_are_refused(done, capsys):
    place = str(done / "records")
    train = ["train", "--config", str(done.parent / "tiny" / "train.yaml"), "--output", str(done / "x")]
    assert main([*train, "--records", place, place]) == 2
    assert "stand in more than one of" in capsys.readouterr().err


def test_all_recipes_are_those_of_one_folder(recipe, tmp_path, monkeypatch, capsys):
    """A folder of the name of one of ours, in which only one stage has a recipe: ours are for other data."""
    (tmp_path / "coco").mkdir()
    shutil.copy(recipe / "mine.yaml", tmp_path / "coco")
    monkeypatch.chdir(tmp_path)
    assert main(["run", "./coco", "--dry-run"]) == 2
    assert "coco lacks synthesize.yaml, train.yaml, evaluate.yaml" in capsys.readouterr().err


def test_dry_run_prints_the_commands(recipe, tmp_path, capsys):
    made = copied(recipe, tmp_path)
    assert main(["run", str(made), "--rounds", "2", "--dry-run", "--split", "train"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == "world evaluate mine synthesize train train evaluate".split() + (
        "mine synthesize train train evaluate".split()
    )
    assert all(line.startswith("$ repair-hf ") for line in lines) and not (tmp_path / "out").exists()
    assert all(f"--ledger {tmp_path}/out/records/{FILE}" in line for line in lines if "repair-hf synthesize" in line)
    assert "--split train" in lines[-1] and f"--earlier-rounds {tmp_path}/out/records" in lines[-4]
    assert f"--output {tmp_path}/out/round-2/records " in lines[-4]
    assert f"--model {tmp_path}/out/round-1/plain " in lines[-3] and "--records" not in lines[-3]
    assert f"--records {tmp_path}/out/records {tmp_path}/out/round-2/records" in lines[-2]


def test_the_outputs_of_a_recipe_lie_in_one_folder(recipe, tmp_path, capsys):
    made = copied(recipe, tmp_path)
    write(made, "train", read(made, "train") | {"output": str(tmp_path / "elsewhere" / "retriever")})
    assert main(["run", str(made)]) == 2
    assert f"must lie in one folder, which gets the later rounds; they lie in {tmp_path}" in capsys.readouterr().err


def test_table_counts_up_and_shows_the_gains():
    recalls, counts = ((0.5, 0.25), (0.52, 0.26), (0.525, 0.255)), ((0, 0), (1000, 7), (500, 3))
    rounds = [
        {"round": number, "records": {"i2t": i2t, "t2i": t2i}, "metrics": {"i2t_R@1": recall, "t2i_R@1": other}}
        | {"plain": {"i2t_R@1": recall - 0.01, "t2i_R@1": other}}
        for number, ((i2t, t2i), (recall, other)) in enumerate(zip(counts, recalls, strict=True))
    ]
    heads, rows = round_rows(rounds)
    assert rows == [
        ["base", "–", "–", "–", "50.0", "–", "–", "25.0", "–", "–"],
        ["1", "1,000", "7", "51.0", "52.0", "+2.0", "26.0", "26.0", "+1.0", "+1.5"],
        ["2", "500", "3", "51.5", "52.5", "+0.5", "25.5", "25.5", "-0.5", "+0.0"],
    ]
    assert len(heads) == len(rows[0])
