"""Contrast sets, further pairs and blends in `evaluate`, against loops over single cosines."""

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import load_dataset

from repair_hf import contrast_set
from repair_hf.cli.main import main
from repair_hf.encoder.blend import blend
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.contrast import load_contrast
from repair_hf.evaluation.evaluate import evaluate
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import Stage
from repair_hf.toyworld.corpus import build_world

SCORES = ("contrast_caption", "contrast_picture")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("contrast")


@pytest.fixture(scope="module")
def world(folder):
    return build_world(folder / "world", splits={"train": 12, "test": 24}, domain="target")


@pytest.fixture(scope="module")
def pairs(world):
    return load_pairs(world, split="test")


@pytest.fixture(scope="module")
def two(pairs, folder):
    contrast_set(pairs, llm="world/oracle", editor="world", output=folder / "two")
    return folder / "two"


@pytest.fixture(scope="module")
def web(folder):
    return build_world(folder / "web", splits={"test": 24}, domain="web", seed=3)


@pytest.fixture(scope="module")
def base():
    return DualEncoder.from_pretrained("world/base")


def randomized(encoder: DualEncoder) -> DualEncoder:
    """The same architecture with random weights."""
    torch.manual_seed(0)
    return DualEncoder(type(encoder.model)(encoder.model.config), encoder.preprocessor)


def test_scores_are_those_of_single_cosines(two, pairs, base):
    found = evaluate(base, pairs, contrast=str(two), resamples=20)["model-1"]
    right: dict[str, list[bool]] = {name: [] for name in ("caption", "picture", "text", "image", "group")}
    rows = load_dataset(str(two), split="test")
    images = [base.embed_images(list(rows[f"image_{number}"])) for number in (0, 1)]
    texts = [base.embed_texts(rows[f"caption_{number}"]) for number in (0, 1)]
    for row in range(len(rows)):
        (a, b), (c, d) = [[float(image[row] @ text[row]) for text in texts] for image in images]
        right["caption"] += [a > b, d > c]
        right["picture"] += [a > c, d > b]
        right["text"].append(a > b and d > c)
        right["image"].append(a > c and d > b)
        right["group"].append(right["text"][-1] and right["image"][-1])
    for name, answers in right.items():
        assert found[f"contrast_{name}"] == pytest.approx(np.mean(answers)), name
    by_kind = [name for name in found if name.startswith("contrast_caption_")]
    assert len(by_kind) >= 4 and found["contrast_n_cases"] == len(right["caption"])


def test_a_retriever_that_guesses_scores_half_and_the_base_is_not_0(two, pairs, web, base):
    """What we print as a score must not favor a retriever that knows nothing, nor punish the one it was made with."""
    kept = {"web": load_pairs(web, split="test")}
    found = evaluate([randomized(base), base], pairs, contrast=str(two), also=kept, resamples=500)
    guess, known = found["model-1"], found["model-2"]
    for name in SCORES:
        low, high = guess["intervals"][name]
        assert low <= 0.5 <= high, (name, guess[name])
        assert known["random"][name] == 0.5
        assert known["intervals"][name][0] > 0.6
    random = found["model-2"]["random"]
    for name, chance in {"text": 0.25, "image": 0.25, "group": 1 / 6}.items():
        assert random[f"contrast_{name}"] == pytest.approx(chance)
        assert guess["intervals"][f"contrast_{name}"][0] <= chance
    for name in ("i2t_R@1", "t2i_R@1", "web_i2t_R@1", "web_t2i_R@1"):
        assert guess[name] < 0.1 < known[name]


def test_a_blind_retriever_gets_exactly_half(two):
    """It prefers some captions, and some pictures, without comparing them."""
    cases = load_contrast(str(two))
    taste = np.random.default_rng(0).normal(size=(len(cases.captions),))
    scores = np.repeat(taste[cases.caption][:, None, :], 2, 1)  # (n, 2, 2), whatever the picture
    assert (cases.judge(scores)["caption"] > 0).mean() == 0.5


def test_a_set_without_an_editor_has_one_score(pairs, folder, base):
    contrast_set(pairs, llm="world/oracle", output=folder / "one")
    found = evaluate(base, pairs, contrast=str(folder / "one"), resamples=5)["model-1"]
    assert found["contrast_caption"] > 0.6 and "contrast_picture" not in found


def test_further_pairs_are_ranked_by_themselves(web, pairs, base, tmp_path):
    kept = load_pairs(web, split="test")
    found = evaluate(base, pairs, also={"web": kept}, resamples=50, output=tmp_path / "out")["model-1"]
    alone = evaluate(base, kept, resamples=50)["model-1"]
    for name in ("i2t_R@1", "t2i_R@1"):
        assert found[f"web_{name}"] == alone[name]
        assert found["intervals"][f"web_{name}"] == pytest.approx(alone["intervals"][name])
    assert (tmp_path / "out" / "also-web-ranks.parquet").is_file()


@pytest.mark.slow
def test_the_command_measures_blends_and_export_writes_one(world, web, base, tmp_path, capsys):
    tuned, out = tmp_path / "tuned", tmp_path / "out"
    model = deepcopy(base.model)
    torch.manual_seed(0)
    for value in model.parameters():
        value.data += 0.02 * torch.randn_like(value)
    model.save_pretrained(tuned)
    base.preprocessor.save_pretrained(tuned)
    words = ["evaluate", "world/base", str(tuned), "--pairs", str(world), "--also", str(web), "--resamples", "5"]
    assert main([*words, "--blends", "0.5", "1", "0", "--output", str(out)]) == 0
    assert "export blend" in capsys.readouterr().out and (out / "blends.svg").is_file()
    metrics = json.loads((out / "metrics.json").read_text())
    assert list(metrics) == ["base", "tuned@0", "tuned@0.5", "tuned@1"]
    same = ("i2t_R@1", "t2i_MRR", "web_i2t_R@1", "web_t2i_R@1")
    assert [metrics["base"][name] for name in same] == [metrics["tuned@0"][name] for name in same]
    made = str(tmp_path / "half")
    assert main(["export", "blend", str(tuned), "--base", "world/base", "--weight", "0.5", "--output", made]) == 0
    expected = deepcopy(model)
    blend(expected, "world/base", 0.5)
    for name, value in DualEncoder.from_pretrained(made).model.state_dict().items():
        assert value.equal(expected.state_dict()[name])
    pairs = load_pairs(world, split="test")
    assert evaluate(made, pairs, resamples=5)["half"]["i2t_R@1"] == metrics["tuned@0.5"]["i2t_R@1"]
    curve = (out / "blends.svg").read_text()
    assert "R@1 on web" in curve and ">0.5<" in curve


def two_trainings(folder: Path, world: Path, base: DualEncoder) -> None:
    """Make two models with other weights than the base, one of them as if it was trained with records."""
    for name, seed, records in (("plain", 1, None), ("repaired", 2, "r")):
        inputs = {"model": "world/base", "records": records}
        items = load_pairs(world, split="train").items
        Stage("train", folder / name, inputs=inputs, items=items).run(lambda _: {"steps": 3})
        model = deepcopy(base.model)
        torch.manual_seed(seed)
        for value in model.parameters():
            value.data += 0.01 * torch.randn_like(value)
        model.save_pretrained(folder / name)
        base.preprocessor.save_pretrained(folder / name)


def test_blends_of_two_trainings_are_compared_at_equal_weight_and_known_images_are_named(
    world, web, base, tmp_path, capsys, caplog
):
    """On the split that both were trained on; the further pairs have another."""
    two_trainings(tmp_path, world, base)
    words = ["evaluate", "world/base", str(tmp_path / "plain"), str(tmp_path / "repaired"), "--pairs", str(world)]
    words += ["--split", "train", "--also", str(web), "--resamples", "50", "--blends", "0.5", "1"]
    words += ["--blend-split", "test"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert list(metrics) == ["base", "plain@0.5", "plain@1", "repaired@0.5", "repaired@1"]
    assert metrics["base"]["n_images"] == 12
    written = json.loads((tmp_path / "out" / "differences.json").read_text())
    compared, blends = written["repair"], written["blends"]
    pairs_of_names = [(repair["model"], repair["reference"]) for repair in compared]
    assert pairs_of_names == [("repaired@0.5", "plain@0.5"), ("repaired@1", "plain@1")]
    assert [blend | {"chosen_on": None} for blend in blends[:2]] == blends[:2]
    assert [{**blend, "chosen_on": 0} for blend in blends[:2]] == [{**repair, "chosen_on": 0} for repair in compared]
    best = {
        name: max(("0.5", "1"), key=lambda weight: metrics[f"{name}@{weight}"]["blend_score"])
        for name in ("plain", "repaired")
    }
    assert [(blend["model"], blend["reference"], blend["chosen_on"]) for blend in blends[2:]] == [
        (f"repaired@{best['repaired']}", f"plain@{best['plain']}", "test")
    ]
    on_test = evaluate(str(tmp_path / "plain"), load_pairs(world, split="test"), resamples=5)["plain"]
    gained = on_test["i2t_R@1"] + on_test["t2i_R@1"]
    kept = metrics["plain@1"]["web_i2t_R@1"] + metrics["plain@1"]["web_t2i_R@1"]
    assert metrics["plain@1"]["blend_score"] == pytest.approx((gained + kept) / 4)
    for repair in compared:
        before, now = metrics[repair["reference"]], metrics[repair["model"]]
        gain = repair["differences"]["web_t2i_R@1"]["difference"]
        assert gain == pytest.approx(now["web_t2i_R@1"] - before["web_t2i_R@1"])
        assert repair["verdict"] == "undecided"  # of 12 images
    curve = (tmp_path / "out" / "blends.svg").read_text()
    assert "1 plain<" in curve and "1 repaired<" in curve
    printed = capsys.readouterr().out
    words = " ".join(printed.split())
    assert "export blend" in printed
    assert "random 8.3 4.2" in words and words.count("repaired@1 −") == 1 + (best["repaired"] == "1")
    assert "12 images are too few for a conclusion" in printed and "web: 24 images are too few" in printed
    for name in ("plain", "repaired"):
        assert caplog.text.count(f"{name} was trained on 12 of the 12 images of the evaluated pairs") == 1
    assert caplog.text.count("was trained on 12 of") == 2
    assert "images of web" not in caplog.text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"blends": [0.5]}, "for two models or more"),
        ({"blends": [1.5], "model": 2}, "less than or equal to 1"),
        ({"blend_split": "validation"}, "chooses among `blends`"),
        ({"contrast": "web"}, "lacks"),
    ],
)
def test_wrong_options_are_one_line(pairs, web, base, wrong, message):
    models = ["world/base"] + ["another/model"] * (wrong.pop("model", 1) - 1)
    wrong = {name: str(web) if value == "web" else value for name, value in wrong.items()}
    with pytest.raises(UserError, match=message):
        evaluate(models, pairs, **wrong)
