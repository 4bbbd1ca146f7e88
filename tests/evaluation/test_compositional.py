"""Compositional benchmarks: real files of each layout, margins and means against the plainest arithmetic."""

import json

import numpy as np
import pytest
from PIL import Image

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation import aro, judging, sugarcrepe, winoground
from repair_hf.evaluation.cases import whole_or_subset
from repair_hf.evaluation.compositional import CompositionalOptions
from repair_hf.evaluation.relations import EXCLUDED
from repair_hf.runtime.options import UserError


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    for place, color in enumerate(("red", "green", "blue", "yellow")):
        Image.new("RGB", (40, 30), color).save(folder / f"{place}.png")
    return folder


@pytest.fixture
def vg(tmp_path, photographs):
    relations = ["eating", "eating", "riding", "next to"]
    rows = [
        {"image_path": f"{k}.png", "relation_name": name, "true_caption": f"a red {k}", "false_caption": f"{k} red a"}
        | {"bbox_x": k, "bbox_y": 0, "bbox_w": 20, "bbox_h": 20}
        for k, name in enumerate(relations)
    ]
    rows[1]["false_caption"] = rows[1]["true_caption"]  # a tie
    path = tmp_path / "visual_genome_relation.json"
    path.write_text(json.dumps(rows))
    return path


def test_relation_numbers_are_means_of_what_each_picture_says(vg, photographs, clip_folder):
    encoder = DualEncoder.from_pretrained(clip_folder)
    cases = aro.load_visual_genome("vg_relation", str(vg), [photographs], subset=True)
    table = judging.evaluate_compositional(encoder, [cases], "m")
    found = judging.compositional_metrics(table, [cases])
    right = []
    for row in json.loads(vg.read_text()):
        x = row["bbox_x"]
        crop = Image.open(photographs / row["image_path"]).crop((x, 0, x + 20, 20))
        image = encoder.embed_images([crop])[0]
        true, false = encoder.embed_texts([row["true_caption"], row["false_caption"]])
        right.append(float(image @ true > image @ false) if row["true_caption"] != row["false_caption"] else 0.0)
    prefix = "vg_relation_subset_"
    assert found[prefix + "micro"] == np.mean(right)
    assert found[prefix + "macro_all"] == pytest.approx(np.mean([np.mean(right[:2]), right[2], right[3]]))
    assert found[prefix + "micro_excl157"] == pytest.approx(np.mean(right[:3]))
    assert found[prefix + "macro_excl157"] == pytest.approx(np.mean([np.mean(right[:2]), right[2]]))
    assert (found[prefix + "n_cases"], found[prefix + "n_ties"]) == (4, 1)
    samples = judging.resample_compositional(table, [cases], 50)
    assert all(values.shape == (50,) for values in samples.values())


def test_the_list_of_left_out_relations_is_whole():
    assert len(EXCLUDED) == 157 and "on the other side of" in EXCLUDED and "eating" not in EXCLUDED


def test_winoground_asks_each_picture_and_each_caption():
    scores = np.array([[[3, 2], [1, 4]], [[3, 2], [1, 1]], [[1, 1], [0, 2]]], np.float32)  # pictures by captions
    right = {name: (margin > 0).tolist() for name, margin in winoground.judge(scores, None).items()}
    assert right == {"text": [True, False, False], "image": [True, False, True], "group": [True, False, False]}


def test_a_part_is_refused_or_named_a_part(vg, photographs, tmp_path):
    with pytest.raises(UserError, match="`vg_relation` has 23,937 cases, and 0 can be evaluated here; 4 photographs"):
        aro.load_visual_genome("vg_relation", str(vg), [tmp_path], subset=True)
    with pytest.raises(UserError, match="and 4 can be evaluated here.*--compositional-subset"):
        aro.load_visual_genome("vg_relation", str(vg), [photographs])


@pytest.mark.parametrize(
    "found, missing, name", [(3, [], "b"), (2, [], "b_subset"), (4, [], "b_subset"), (3, ["x"], "b_subset")]
)
def test_only_the_whole_benchmark_has_its_name(found, missing, name):
    assert whole_or_subset("b", found=found, published=3, missing=missing, subset=True) == name


def test_other_files_than_the_benchmarks_are_refused(tmp_path):
    with pytest.raises(UserError, match="lacks add_att.json, add_obj.json"):
        sugarcrepe.load_sugarcrepe(tmp_path, [])
    for name in sugarcrepe.SUGARCREPE:
        (tmp_path / f"{name}.json").write_text("{}")
    with pytest.raises(UserError, match="has 0 cases; the benchmark's has 692"):
        sugarcrepe.load_sugarcrepe(tmp_path, [])


@pytest.mark.parametrize(
    "words, said",
    [
        (["aro"], "takes world, order, .* got 'aro'"),
        (["sugarcrepe"], "sugarcrepe=FOLDER"),
        (["world=x"], "takes no path, got x"),
        (["order", "order=world"], "names order twice"),
    ],
)
def test_a_benchmark_that_is_unknown_or_lacks_its_files(words, said):
    with pytest.raises(UserError, match=said):
        CompositionalOptions(compositional=words)
