"""ARO's Visual Genome parts: made-up files and datasets, metrics against the plainest arithmetic."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from benchmark_files import COLORS, vg_rows, with_images
from PIL import Image

from repair_hf.cli.main import main
from repair_hf.evaluation import aro, judging
from repair_hf.runtime.options import UserError

RELATIONS = ["eating", "on", "riding", "on"]


@pytest.fixture
def relations(tmp_path, photographs):
    """Write a file of relations and read its cases."""

    def read(rows: list, folder=photographs, subset=True):
        (tmp_path / "visual_genome_relation.json").write_text(json.dumps(rows))
        return aro.load_visual_genome("vg_relation", str(tmp_path), [folder], subset=subset)

    return read


@pytest.fixture
def from_dataset(photographs, tmp_path):
    """The rows of relations, some columns replaced, as a dataset of photographs."""

    def read(**columns):
        rows = vg_rows("relation_name", RELATIONS)
        every = {name: [row[name] for row in rows] for name in ("true_caption", "false_caption", "relation_name")}
        every |= {"image": list(COLORS)} | columns
        with_images(photographs, every, ["image"]).save_to_disk(str(tmp_path / "dataset"))
        return aro.load_visual_genome("vg_relation", str(tmp_path / "dataset"), [], subset=True)

    return read


def test_relation_metrics_are_means_of_what_each_picture_says(relations, photographs, encoder):
    rows = vg_rows("relation_name", ["eating", "eating", "riding", "next to"])
    rows[1]["false_caption"] = rows[1]["true_caption"]  # a tie
    cases = relations(rows)
    table = judging.evaluate_compositional(encoder, [cases], "m")
    found = judging.compositional_metrics(table, [cases])
    right = []
    for row in rows:
        x = row["bbox_x"]
        image = encoder.embed_images([Image.open(photographs / row["image_path"]).crop((x, 2, x + 10, 22))])[0]
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


def test_the_list_of_excluded_relations_is_whole():
    assert len(aro.EXCLUDED) == 157 and "on the other side of" in aro.EXCLUDED and "eating" not in aro.EXCLUDED


def test_vg_attribution_from_its_file(photographs, tmp_path):
    pairs = [["wooden", "red"]] * 25 + [["tall", "old"]] * 3
    (tmp_path / "images").symlink_to(photographs)
    (tmp_path / "visual_genome_attribution.json").write_text(json.dumps(vg_rows("attributes", pairs)))
    cases = aro.load_visual_genome("vg_attribution", str(tmp_path), [], subset=True)
    assert cases.benchmark == "vg_attribution_subset" and Counter(cases.groups) == {"wooden_red": 25, "tall_old": 3}
    names = {metric.name: metric.groups for metric in cases.metrics}
    assert names == {"micro": None, "macro_all": ("tall_old", "wooden_red"), "macro_min25": ("wooden_red",)}
    assert len(cases.pictures) == 12  # four photographs, three boxes
    for row in (0, 1, 2):
        (part,) = cases.pictures[cases.picture[row]]
        assert part.size == (10, 20)
        assert part.getpixel((0, 0)) == Image.open(photographs / f"{COLORS[row]}.png").getpixel((10 * row, 2))
    assert [cases.captions[k] for k in cases.caption[1]] == ["green is right", "right is green"]


@pytest.mark.parametrize("has", ["boxes", "parts"])
def test_vg_relation_as_a_dataset(photographs, has, from_dataset, encoder):
    """A copy with whole photographs and boxes; and one of the cut parts, with the boxes by which they were cut."""
    rows = vg_rows("relation_name", RELATIONS)
    if has == "parts":
        for row in rows:
            x = row["bbox_x"]
            part = Image.open(photographs / row["image_path"]).crop((x, 2, x + 10, 22))
            part.save(photographs / row["image_path"])
    cases = from_dataset(bbox=[{side: row[f"bbox_{side}"] for side in "xywh"} for row in rows])
    assert (len(cases), cases.groups) == (4, RELATIONS)
    parts = cases.pictures[cases.picture[:, 0]]
    assert [part.size for part in parts] == [(10, 20)] * 4 and parts[2].getpixel((0, 0)) == (255, 255, 255)
    assert judging.evaluate_compositional(encoder, [cases], "m").num_rows == 4


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"true_caption": ["a", "b", None, "d"]}, "dataset, case 2: needs the texts true_caption, false_caption"),
        ({"bbox": [[0, 2, 10, 20]] * 4}, "case 0: needs a box of the numbers x, y, w, h, got .0, 2, 10, 20."),
    ],
)
def test_a_dataset_with_gaps_or_other_boxes_raises(columns, message, from_dataset):
    with pytest.raises(UserError, match=message):
        from_dataset(**columns)


def test_a_subset_must_be_asked_for_and_a_file_may_not_name_what_lies_outside(photographs, relations, tmp_path):
    rows = vg_rows("relation_name", ["on", "on"])
    with pytest.raises(UserError, match="`vg_relation` has 23,937 cases, and 2 can .*--compositional-subset"):
        relations(rows, subset=False)
    rows[0]["image_path"] = "../photographs/red.png"
    rows[1]["image_path"] = str(photographs / "red.png")
    with pytest.raises(UserError, match="and 0 can be evaluated here; 2 photographs are missing"):
        relations(rows, tmp_path / "x")


def test_a_picture_that_cannot_be_embedded_is_named(photographs, relations, encoder):
    cases = relations(vg_rows("relation_name", ["on"] * 3))
    encoder.model.visual_projection.weight.data.zero_()
    message = r"3 of 3 vectors are zero or not finite, first for image 0 \(of case 0\)"
    with pytest.raises(UserError, match=message):
        judging.evaluate_compositional(encoder, [cases], "m")
    torn = photographs / "red.png"
    torn.write_bytes(torn.read_bytes()[:60])
    cases = relations(vg_rows("relation_name", ["on"] * 3))
    with pytest.raises(UserError, match=rf"^{re.escape(str(torn))} of a compositional benchmark cannot be decoded"):
        judging.evaluate_compositional(encoder, [cases], "m")


def test_other_cases_under_the_same_path_are_another_evaluation(
    photographs, tmp_path, pairs_folder, clip_folder, capsys
):
    path = tmp_path / "visual_genome_relation.json"
    words = f"evaluate --pairs {pairs_folder} --split all --model {clip_folder} --resamples 5 --compositional-subset"
    words += f" --output {tmp_path / 'out'} --compositional vg_relation={path} --compositional-images {photographs}"
    path.write_text(json.dumps(vg_rows("relation_name", ["on", "on"])))
    assert main(words.split()) == 0
    path.write_text(json.dumps(vg_rows("relation_name", ["on", "on", "on"])))
    assert main(words.split()) == 2 and "cases_fingerprints" in capsys.readouterr().err
