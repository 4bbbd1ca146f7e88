"""Published benchmarks from made-up files and datasets: every row where it belongs, and the plainest arithmetic."""

import json
import re
from collections import Counter

import numpy as np
import pytest
from benchmark_files import COLORS, WINO, color_of, vg_rows, with_images
from datasets import Dataset, DatasetDict
from PIL import Image

from repair_hf.cli.main import main
from repair_hf.evaluation import judging
from repair_hf.evaluation.benchmark_metrics import (
    EXCLUDED,
    SUGARCREPE,
    judge_winoground,
    sugarcrepe_metrics,
)
from repair_hf.evaluation.benchmarks import BENCHMARKS, load_benchmark, whole_or_subset
from repair_hf.evaluation.pictures import load_test_split
from repair_hf.runtime.options import UserError

RELATION_FILE = "visual_genome_relation.json"
RELATIONS = ["eating", "on", "riding", "on"]


@pytest.fixture
def relations(tmp_path, photographs):
    """Write a file of relations and read its cases."""

    def read(rows: list, folder=photographs, subset=True):
        (tmp_path / RELATION_FILE).write_text(json.dumps(rows))
        return load_benchmark("vg_relation", str(tmp_path), [folder], subset=subset)

    return read


@pytest.fixture
def from_dataset(photographs, tmp_path):
    """The rows of relations, some columns replaced, as a dataset of photographs."""

    def read(**columns):
        rows = vg_rows("relation_name", RELATIONS)
        every = {name: [row[name] for row in rows] for name in ("true_caption", "false_caption", "relation_name")}
        every |= {"image": list(COLORS)} | columns
        with_images(photographs, every, ["image"]).save_to_disk(str(tmp_path / "dataset"))
        return load_benchmark("vg_relation", str(tmp_path / "dataset"), [], subset=True)

    return read


def texts(cases) -> list[list[str]]:
    return [[cases.captions[row] for row in case] for case in cases.caption]


def shown(cases) -> list[list[str]]:
    return [[color_of(picture) for picture in cases.pictures[row]] for row in cases.picture]


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
    assert len(EXCLUDED) == 157 and "on the other side of" in EXCLUDED and "eating" not in EXCLUDED


def test_attributes_from_their_file_are_parts_of_photographs(photographs, tmp_path):
    pairs = [["wooden", "red"]] * 25 + [["tall", "old"]] * 3
    (tmp_path / "images").symlink_to(photographs)
    (tmp_path / "visual_genome_attribution.json").write_text(json.dumps(vg_rows("attributes", pairs)))
    cases = load_benchmark("vg_attribution", str(tmp_path), [], subset=True)
    assert cases.benchmark == "vg_attribution_subset" and Counter(cases.groups) == {"wooden_red": 25, "tall_old": 3}
    names = {metric.name: metric.groups for metric in cases.metrics}
    assert names == {"micro": None, "macro_all": ("tall_old", "wooden_red"), "macro_min25": ("wooden_red",)}
    assert len(cases.pictures) == 12  # four photographs, three boxes
    for row in (0, 1, 2):
        (part,) = cases.pictures[cases.picture[row]]
        assert part.size == (10, 20)
        assert part.getpixel((0, 0)) == Image.open(photographs / f"{COLORS[row]}.png").getpixel((10 * row, 2))
    assert texts(cases)[1] == ["green is right", "right is green"]


@pytest.mark.parametrize("has", ["boxes", "parts"])
def test_relations_as_a_dataset(photographs, has, from_dataset, encoder):
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
    words = f"evaluate --pairs {pairs_folder} --split all --model {clip_folder} --resamples 5 --compositional-subset"
    words += f" --output {tmp_path / 'out'} --compositional vg_relation={tmp_path}"
    words += f" --compositional-images {photographs}"
    (tmp_path / RELATION_FILE).write_text(json.dumps(vg_rows("relation_name", ["on", "on"])))
    assert main([*words.split(), "--dry-run"]) == 0
    assert "\nvg_relation_subset: 2 cases of 4 captions.\n" in capsys.readouterr().out
    assert main(words.split()) == 0
    assert re.search(r"vg_relation_subset: 2 cases on 2 pictures; cases with a tie: \d ", capsys.readouterr().out)
    (tmp_path / RELATION_FILE).write_text(json.dumps(vg_rows("relation_name", ["on", "on", "on"])))
    assert main(words.split()) == 2 and "cases_fingerprints" in capsys.readouterr().err


def test_sugarcrepe_has_a_file_for_each_category(tmp_path, photographs):
    for category in SUGARCREPE:
        rows = {k: {"filename": f"{COLORS[k % 4]}.png", "caption": f"{category} {k}"} for k in range(5)}
        rows = {k: row | {"negative_caption": f"no {category} {k}"} for k, row in rows.items()}
        (tmp_path / f"{category}.json").write_text(json.dumps(rows))
    cases = load_benchmark("sugarcrepe", str(tmp_path), [photographs], subset=True)
    assert (cases.benchmark, len(cases), len(cases.pictures)) == ("sugarcrepe_subset", 35, 4)
    assert Counter(cases.groups) == dict.fromkeys(SUGARCREPE, 5)
    row = cases.case_ids.index("swap_obj/2")
    assert texts(cases)[row] == ["swap_obj 2", "no swap_obj 2"]
    assert (cases.picture_ids[row], shown(cases)[row]) == (f"{COLORS[2]}.png", [COLORS[2]])


def test_what_is_asked_of_two_pictures_and_of_categories():
    scores = np.array([[[3, 2], [1, 4]], [[3, 2], [1, 1]], [[1, 1], [0, 2]]], np.float32)  # pictures by captions
    right = {name: (margin > 0).tolist() for name, margin in judge_winoground(scores).items()}
    assert right == {"text": [True, False, False], "image": [True, False, True], "group": [True, False, False]}
    means = {metric.name: metric for metric in sugarcrepe_metrics(["swap_att", "add_att", "swap_obj", "add_att"])}
    assert means["swap"].groups == ("swap_att", "swap_obj") and means["macro"].weights == (1 / 3,) * 3
    assert means["macro_kinds"].groups == ("add_att", "swap_att", "swap_obj")
    assert means["macro_kinds"].weights == (0.5, 0.25, 0.25)  # of each kind a half


@pytest.mark.parametrize("form", ["files", "parquet", "saved", "saved with splits"])
def test_winoground(photographs, tmp_path, form, monkeypatch):
    folder = tmp_path / "winoground"
    dataset = with_images(photographs, WINO, ["image_0", "image_1"])
    if form == "files":
        rows = [{"id": 7 + k} | {name: values[k] for name, values in WINO.items()} for k in range(2)]
        rows.append({"id": 9, "image_0": "red", "image_1": "gone", "caption_0": "a", "caption_1": "b"})
        folder.mkdir()
        (folder / "examples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    elif form == "parquet":  # as the Hub has it: the images' bytes in the file
        dataset.save_to_disk(str(tmp_path / "saved"))
        (folder / "data").mkdir(parents=True)
        whole = Dataset.load_from_disk(str(tmp_path / "saved"))
        whole.to_parquet(folder / "data" / "test-00000-of-00001.parquet")
        monkeypatch.chdir(tmp_path)
        folder = folder.rename("parquet")  # which is also the name of a reader of `datasets`
    else:
        splits = DatasetDict({"train": dataset.select([0]), "test": dataset})
        (splits if form == "saved with splits" else dataset).save_to_disk(str(folder))
    cases = load_benchmark("winoground", str(folder), [photographs], subset=True)
    assert (cases.benchmark, len(cases), len(cases.pictures)) == ("winoground_subset", 2, 4)
    assert shown(cases) == [["red", "blue"], ["green", "yellow"]] and texts(cases) == [["r", "b"], ["g", "y"]]
    assert cases.case_ids == cases.picture_ids == (["7", "8"] if form == "files" else ["0", "1"])


def test_a_dataset_must_have_a_test_split_and_its_columns(photographs, tmp_path):
    dataset = with_images(photographs, WINO, ["image_0", "image_1"])
    DatasetDict({"a": dataset, "b": dataset}).save_to_disk(str(tmp_path / "two"))
    with pytest.raises(UserError, match=r"has the splits \['a', 'b'\], and none named test"):
        load_test_split(str(tmp_path / "two"))
    dataset.remove_columns("caption_1").save_to_disk(str(tmp_path / "less"))
    with pytest.raises(UserError, match="has the columns .*; it lacks caption_1"):
        load_benchmark("winoground", str(tmp_path / "less"), [])
    with pytest.raises(UserError, match="`facebook/winoground` cannot be loaded as a dataset.*hf auth login"):
        load_benchmark("winoground", "facebook/winoground", [])


def second(benchmark: str, **cells) -> dict[str, str]:
    """The file of a part of ARO, of two cases, with other cells in the second."""
    column = BENCHMARKS[benchmark].group
    rows = vg_rows(column, ["on", "on"] if benchmark == "vg_relation" else [["red", "old"]] * 2)
    return {BENCHMARKS[benchmark].files[0]: json.dumps([rows[0], rows[1] | cells])}


@pytest.mark.parametrize(
    ("benchmark", "files", "message"),
    [
        ("vg_relation", {RELATION_FILE: "{"}, "visual_genome_relation.json is damaged"),
        ("vg_relation", {RELATION_FILE: "3"}, "must hold cases, by number or in a list, got 3"),
        ("vg_relation", {RELATION_FILE: "[[]]"}, r"case 0: needs the texts image_path, true_caption, .* got \[\]"),
        ("vg_relation", second("vg_relation", image_path=None), "case 1: needs the texts image_path, true_caption"),
        ("vg_relation", second("vg_relation", relation_name=None), "case 1: needs `relation_name`, a text or"),
        ("vg_attribution", second("vg_attribution", attributes=["red", None]), "case 1: needs `attributes`"),
        ("vg_relation", second("vg_relation", bbox_x="10"), "case 1: needs a box of the numbers x, y, w, h"),
        ("sugarcrepe", {}, "lacks add_att.json, add_obj.json"),
        ("sugarcrepe", {f"{name}.json": "{}" for name in SUGARCREPE}, "has 7,511 cases, and 0 can be evaluated"),
        ("winoground", {"examples.jsonl": "\n{not json"}, "line 2 is not JSON"),
    ],
)
def test_files_that_are_not_the_benchmarks_raise(benchmark, files, message, photographs, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        load_benchmark(benchmark, str(tmp_path), [photographs], subset=True)


@pytest.mark.parametrize(
    "found, missing, name", [(3, [], "b"), (2, [], "b_subset"), (4, [], "b_subset"), (3, ["x"], "b_subset")]
)
def test_only_the_whole_benchmark_has_its_name(found, missing, name):
    assert whole_or_subset("b", found, 3, missing, subset=True) == name
