"""The whole pipeline on a tiny toy world, by the real command; a second run makes nothing again."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

import pytest
from datasets import load_dataset
from transformers import AutoModel, AutoProcessor

from repair_hf.cli.demo import SIZES
from repair_hf.cli.main import main

METRICS = {"i2t_R@1", "t2i_R@1", "web_i2t_R@1", "web_t2i_R@1"}
TRAININGS = ("plain", "repair", "repair, paper's choice")


def run(folder: Path) -> str:
    """Run the command in a world of fewer pictures, and return what it showed."""
    fewer = {"world": {"train": 16, "validation": 1, "test": 5}, "web": 5, "mining": {"max_queries": 16, "d_i2t": 2}}
    with redirect_stdout(StringIO()) as shown, mock.patch.dict(SIZES, tiny=SIZES["tiny"] | fewer):
        assert main(["demo", "--size", "tiny", "--output", str(folder)]) == 0
    return shown.getvalue()


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Path, str]:
    """The folder of a tiny demo, and what it showed."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    return folder, run(folder)


def test_only_the_end_suggests_what_comes_next(demo):
    shown = demo[1]
    assert shown.count("\nnext: ") == 1 and not any(line.endswith((":", "they add.")) for line in shown.splitlines())


def test_metrics_hold_every_method(demo):
    folder = demo[0]
    metrics = json.loads((folder / "metrics.json").read_text())
    assert set(metrics) == {"random", "base", *TRAININGS, *(f"{training}, blend 0.8" for training in TRAININGS)}
    for row in metrics.values():
        assert set(row) >= METRICS
    assert metrics["random"]["t2i_R@1"] == pytest.approx(1 / 5)
    assert metrics["base"]["n_images"] == 5 and metrics["base"]["n_texts"] == 25
    assert all(metrics[training]["seconds"] > 0 for training in TRAININGS)
    assert len({metrics[training]["steps"] for training in TRAININGS}) == 1


def test_records_load_like_any_dataset_and_are_mostly_true(demo):
    """By the scenes; the demo's LLM and editor err."""
    from repair_hf.toyworld import captions, renderer, scenes

    records = load_dataset(str(demo[0] / "records"), "records", split="train")
    assert set(records["direction"]) == {"t2i", "i2t"}
    said = [row["q_text"] if row["direction"] == "t2i" else row["edit_text"] for row in records]
    shown = [row["edit_image"] if row["direction"] == "t2i" else row["q_image"] for row in records]
    both = zip(said, shown, strict=True)
    true = [scenes.holds(captions.parse(text), renderer.read_scene(image)) for text, image in both]
    assert sum(true) > 0.75 * len(true) > 5
    dropped = load_dataset(str(demo[0] / "records"), "dropped", split="train")
    assert {"fp_too_similar", "gt_invalid"} <= set(dropped["reason"])


def test_retrievers_and_table_are_there(demo):
    folder, shown = demo
    for trained in sorted((folder / "train").iterdir()):
        AutoModel.from_pretrained(trained)
        AutoProcessor.from_pretrained(trained)
    table = (folder / "table.md").read_text()
    assert "repair, paper's choice" in table and "plain, blend 0.8" in table and "web T2I R@1" in table
    assert table.splitlines()[-1] in shown and (folder / "evaluate" / "blends.svg").is_file()
    blends = json.loads((folder / "evaluate" / "differences.json").read_text())["blends"]
    assert [(row["model"], row["reference"]) for row in blends] == [
        (f"{method}@{weight}", f"plain@{weight}") for method in ("repair", "repair_paper") for weight in ("0.8", "1")
    ]


def stamps(folder: Path) -> dict[Path, int]:
    made = [path for name in ("*.safetensors", "ledger.sqlite", "ranks.parquet") for path in folder.rglob(name)]
    return {path: path.stat().st_mtime_ns for path in made}


@pytest.mark.slow
def test_a_second_run_shows_the_same_and_makes_nothing_again(demo):
    folder, first = demo
    before, second = stamps(folder), run(folder)
    assert len(before) > 10 and stamps(folder) == before
    one, two = first.splitlines(), second.splitlines()
    assert one[-7:-2] == two[-7:-2] and one[-1] == two[-1]
    assert one[-1].startswith("next: repair-hf show ")
