"""Published benchmarks from made-up datasets and files: every row where it belongs, and the plainest arithmetic."""

import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

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
from repair_hf.evaluation.benchmarks import BENCHMARKS, load_benchmark
from repair_hf.evaluation.pictures import load_test_split
from repair_hf.pairs.annotations import load_annotations
from repair_hf.pairs.problems import Problems
from repair_hf.runtime.options import UserError

RELATIONS = ["eating", "on", "riding", "on"]


@pytest.fixture
def dataset(photographs, tmp_path):
    """Write rows of a part of ARO, some columns replaced, as a dataset of photographs; return its cases."""

    def read(groups: list, kind: str = "relation", **columns):
        group = BENCHMARKS[f"vg_{kind}"].group
        rows = vg_rows(group, groups)
        table = {name: [row[name] for row in rows] for name in ("true_caption", "false_caption", group)}
        table |= {"image": [COLORS[k % 4] for k in range(len(rows))]} | columns
        with_images(photographs, table, ["image"]).save_to_disk(str(tmp_path / "dataset"))
        return load_benchmark(f"vg_{kind}", str(tmp_path / "dataset"))

    return read


@pytest.fixture
def sugarcrepe(tmp_path):
    """Write the authors' files, five cases a category, and return their folder; cells of the first may be changed."""

    def write(name: str, **changes):
        for category in BENCHMARKS[name].categories:
            rows = {str(k): {"filename": f"{COLORS[k % 4]}.png", "caption": f"{category} {k}"} for k in range(5)}
            for k, row in rows.items():
                row |= {"caption2": f"also {category} {k}", "negative_caption": f"no {category} {k}"}
            rows["0"] |= changes
            content = rows if name == "sugarcrepe" else list(rows.values())
            (tmp_path / f"{category}.json").write_text(json.dumps(content))
        return str(tmp_path)

    return write


def texts(cases) -> list[list[str]]:
    return [[cases.captions[row] for row in case] for case in cases.caption]


def shown(cases) -> list[list[str]]:
    return [[color_of(picture) for picture in cases.pictures[row]] for row in cases.picture]


def boxes_of(rows: list) -> list[dict]:
    return [{side: row[f"bbox_{side}"] for side in "xywh"} for row in rows]


def test_relation_metrics_are_means_of_what_each_picture_says(dataset, photographs, encoder):
    groups = ["eating", "eating", "riding", "next to"]
    rows = vg_rows("relation_name", groups)
    rows[1]["false_caption"] = rows[1]["true_caption"]  # a tie
    cases = dataset(groups, bbox=boxes_of(rows), false_caption=[row["false_caption"] for row in rows])
    table = judging.evaluate_compositional(encoder, [cases], "m")
    metrics = judging.compositional_metrics(table, [cases])
    right = []
    for row in rows:
        x = row["bbox_x"]
        image = encoder.embed_images([Image.open(photographs / row["image_path"]).crop((x, 2, x + 10, 22))])[0]
        true, false = encoder.embed_texts([row["true_caption"], row["false_caption"]])
        right.append(float(image @ true > image @ false) if row["true_caption"] != row["false_caption"] else 0.0)
    prefix = "vg_relation_subset_"
    assert metrics[prefix + "micro"] == np.mean(right)
    assert metrics[prefix + "macro_all"] == pytest.approx(np.mean([np.mean(right[:2]), right[2], right[3]]))
    assert metrics[prefix + "micro_excl157"] == pytest.approx(np.mean(right[:3]))
    assert metrics[prefix + "macro_excl157"] == pytest.approx(np.mean([np.mean(right[:2]), right[2]]))
    assert (metrics[prefix + "n_cases"], metrics[prefix + "n_ties"]) == (4, 1)
    samples = judging.resample_compositional(table, [cases], 50)
    assert all(values.shape == (50,) for values in samples.values())
    assert len(EXCLUDED) == 157 and "on the other side of" in EXCLUDED and "eating" not in EXCLUDED


def test_attributes_are_two_words_and_pairs_of_few_cases_leave_the_headline(dataset):
    cases = dataset([["wooden", "red"]] * 25 + [["tall", "old"]] * 3, "attribution")
    assert cases.benchmark == "vg_attribution_subset" and Counter(cases.groups) == {"wooden_red": 25, "tall_old": 3}
    names = {metric.name: metric.groups for metric in cases.metrics}
    assert names == {"micro": None, "macro_all": ("tall_old", "wooden_red"), "macro_min25": ("wooden_red",)}
    assert texts(cases)[1] == ["green is right", "right is green"]


@pytest.mark.parametrize("has", ["boxes", "parts"])
def test_a_case_is_about_the_part_in_its_box(photographs, has, dataset):
    """A copy with whole photographs and boxes; and one of the cut parts, with the boxes by which they were cut."""
    rows = vg_rows("relation_name", RELATIONS)
    if has == "parts":
        for row in rows:
            x = row["bbox_x"]
            part = Image.open(photographs / row["image_path"]).crop((x, 2, x + 10, 22))
            part.save(photographs / row["image_path"])
    cases = dataset(RELATIONS, bbox=boxes_of(rows))
    assert (len(cases), cases.groups) == (4, RELATIONS)
    parts = cases.pictures[cases.picture[:, 0]]
    assert [part.size for part in parts] == [(10, 20)] * 4 and parts[2].getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"true_caption": ["a", "b", None, "d"]}, "dataset, case 2: needs the texts true_caption, false_caption"),
        ({"relation_name": ["a", None, "c", "d"]}, "dataset, case 1: needs `relation_name`, a text or several"),
        ({"bbox": [[0, 2, 10, 20]] * 4}, "case 0: needs a box of the numbers x, y, w, h, got .0, 2, 10, 20."),
    ],
)
def test_a_dataset_with_gaps_or_other_boxes_raises(columns, message, dataset):
    with pytest.raises(UserError, match=message):
        dataset(RELATIONS, **columns)


def test_a_dataset_must_have_a_test_split_and_its_columns(photographs, tmp_path):
    pictures = with_images(photographs, WINO, ["image_0", "image_1"])
    DatasetDict({"a": pictures, "b": pictures}).save_to_disk(str(tmp_path / "two"))
    with pytest.raises(UserError, match=r"has the splits \['a', 'b'\], and none named test"):
        load_test_split(str(tmp_path / "two"))
    pictures.remove_columns("caption_1").save_to_disk(str(tmp_path / "less"))
    with pytest.raises(UserError, match="has the columns .*; it lacks caption_1"):
        load_benchmark("winoground", str(tmp_path / "less"))
    with pytest.raises(UserError, match="facebook/winoground cannot be loaded as a dataset.*hf auth login"):
        load_benchmark("winoground", "facebook/winoground")


@pytest.mark.parametrize("form", ["parquet", "saved", "saved with splits"])
def test_winoground(photographs, tmp_path, form, monkeypatch):
    folder = tmp_path / "winoground"
    pictures = with_images(photographs, WINO, ["image_0", "image_1"])
    if form == "parquet":  # as the Hub has it: the images' bytes in the file
        pictures.save_to_disk(str(tmp_path / "saved"))
        (folder / "data").mkdir(parents=True)
        whole = Dataset.load_from_disk(str(tmp_path / "saved"))
        whole.to_parquet(folder / "data" / "test-00000-of-00001.parquet")
        monkeypatch.chdir(tmp_path)
        folder = folder.rename("parquet")  # which is also the name of a reader of `datasets`
    else:
        splits = DatasetDict({"train": pictures.select([0]), "test": pictures})
        (splits if form == "saved with splits" else pictures).save_to_disk(str(folder))
    cases = load_benchmark("winoground", str(folder))
    assert (cases.benchmark, len(cases), len(cases.pictures)) == ("winoground_subset", 2, 4)
    assert shown(cases) == [["red", "blue"], ["green", "yellow"]] and texts(cases) == [["r", "b"], ["g", "y"]]
    assert cases.case_ids == cases.picture_ids == ["0", "1"]


def test_winogrounds_repository_is_read_once_its_images_are_unpacked(photographs, tmp_path):
    (scores := tmp_path / "statistics" / "model_scores").mkdir(parents=True)
    (scores / "clip.jsonl").write_text('{"label": "0_c0_i0", "score": 1}\n')
    (data := tmp_path / "data").mkdir()
    rows = [{"id": k, **{name: cells[k] for name, cells in WINO.items()}} for k in range(2)]
    (data / "examples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for folder in (tmp_path, data):
        with pytest.raises(UserError, match="images does not exist.* Unpack images.zip there"):
            load_benchmark("winoground", str(folder))
    shutil.copytree(photographs, data / "images")
    for folder in (tmp_path, data):
        cases = load_benchmark("winoground", str(folder))
        assert (cases.benchmark, len(cases)) == ("winoground_subset", 2)
        assert shown(cases) == [["red", "blue"], ["green", "yellow"]] and texts(cases) == [["r", "b"], ["g", "y"]]
    (data / "images" / "blue.png").unlink()
    with pytest.raises(UserError, match="1 images of `image_1` cannot be used, .* row 0: .*blue.png' does not exist"):
        load_benchmark("winoground", str(tmp_path))


def test_sugarcrepe_has_a_file_for_each_category(sugarcrepe, photographs):
    cases = load_benchmark("sugarcrepe", sugarcrepe("sugarcrepe"), [photographs])
    assert (cases.benchmark, len(cases), len(cases.pictures)) == ("sugarcrepe_subset", 35, 4)
    assert Counter(cases.groups) == dict.fromkeys(SUGARCREPE, 5)
    row = cases.case_ids.index("swap_obj/2")
    assert texts(cases)[row] == ["swap_obj 2", "no swap_obj 2"]
    assert (cases.picture_ids[row], shown(cases)[row]) == (f"{COLORS[2]}.png", [COLORS[2]])


def test_in_sugarcrepe_plus_plus_both_true_captions_must_beat_the_false_one(sugarcrepe, photographs, encoder):
    cases = load_benchmark("sugarcrepe_pp", sugarcrepe("sugarcrepe_pp"), [photographs])
    assert (cases.benchmark, len(cases), len(set(cases.groups))) == ("sugarcrepe_pp_subset", 25, 5)
    table = judging.evaluate_compositional(encoder, [cases], "m")
    right = []
    for (row,), captions in zip(cases.picture, texts(cases), strict=True):
        image = encoder.embed_images(cases.pictures[np.array([row])])[0]
        one, other, false = encoder.embed_texts(captions) @ image
        right.append(one > false and other > false)
    assert table["correct"].to_pylist() == right and 0 < sum(right) < 25
    metrics = judging.compositional_metrics(table, [cases])
    assert metrics["sugarcrepe_pp_subset_micro"] == pytest.approx(np.mean(right))
    assert BENCHMARKS["sugarcrepe_pp"].published == 4757


def test_what_is_asked_of_two_pictures_and_of_categories():
    scores = np.array([[[3, 2], [1, 4]], [[3, 2], [1, 1]], [[1, 1], [0, 2]]], np.float32)  # pictures by captions
    right = {name: (margin > 0).tolist() for name, margin in judge_winoground(scores).items()}
    assert right == {"text": [True, False, False], "image": [True, False, True], "group": [True, False, False]}
    means = {metric.name: metric for metric in sugarcrepe_metrics(["swap_att", "add_att", "swap_obj", "add_att"])}
    assert means["swap"].groups == ("swap_att", "swap_obj") and means["macro"].weights == (1 / 3,) * 3
    assert means["macro_kinds"].groups == ("add_att", "swap_att", "swap_obj")
    assert means["macro_kinds"].weights == (0.5, 0.25, 0.25)  # of each kind a half


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"filename": "gone.png"}, r"1 of 5 photographs of .* are missing \('gone.png'\): name their folder"),
        ({"filename": "../photographs/gone/red.png", "caption": 3}, "case 0: needs the texts filename, caption, neg"),
    ],
)
def test_files_that_are_not_the_benchmarks_raise(changes, message, sugarcrepe, photographs, tmp_path):
    with pytest.raises(UserError, match=message):
        load_benchmark("sugarcrepe", sugarcrepe("sugarcrepe", **changes), [photographs])
    (tmp_path / "add_att.json").write_text("3")
    with pytest.raises(UserError, match="must hold cases, by number or in a list, got 3"):
        load_benchmark("sugarcrepe", str(tmp_path), [photographs])
    (tmp_path / "add_att.json").unlink()
    with pytest.raises(UserError, match="lacks add_att.json; give the folder"):
        load_benchmark("sugarcrepe", str(tmp_path), [photographs])


def test_a_picture_that_cannot_be_embedded_is_named(photographs, sugarcrepe, encoder):
    cases = load_benchmark("sugarcrepe", sugarcrepe("sugarcrepe"), [photographs])
    encoder.model.visual_projection.weight.data.zero_()
    message = r"4 of 4 vectors are zero or not finite, first for image 0 \(of case add_att/0\)"
    with pytest.raises(UserError, match=message):
        judging.evaluate_compositional(encoder, [cases], "m")
    torn = photographs / "red.png"
    torn.write_bytes(torn.read_bytes()[:60])
    cases = load_benchmark("sugarcrepe", sugarcrepe("sugarcrepe"), [photographs])
    with pytest.raises(UserError, match=rf"^{re.escape(str(torn))} of a compositional benchmark cannot be decoded"):
        judging.evaluate_compositional(encoder, [cases], "m")


def test_other_cases_under_the_same_path_are_another_evaluation(
    photographs, sugarcrepe, tmp_path, pairs_folder, clip_folder, capsys
):
    words = f"evaluate --pairs {pairs_folder} --split all --model {clip_folder} --resamples 5"
    words += f" --output {tmp_path / 'out'} --compositional sugarcrepe={sugarcrepe('sugarcrepe')}"
    words += f" --compositional-images {photographs}"
    assert main([*words.split(), "--dry-run"]) == 0
    assert "\nsugarcrepe_subset: 35 cases of 70 captions.\n" in capsys.readouterr().out
    assert main(words.split()) == 0
    line = r"sugarcrepe_subset: 35 cases on 4 pictures; cases with a tie: (none|\d \()"
    assert re.search(line, capsys.readouterr().out)
    sugarcrepe("sugarcrepe", caption="another")
    assert main(words.split()) == 2 and "cases_fingerprints" in capsys.readouterr().err


# The benchmarks' own files: they are not shipped, and are named by environment variables


OWN_SUGARCREPE = os.environ.get("REPAIR_HF_SUGARCREPE")
OWN_COCO = os.environ.get("REPAIR_HF_COCO_CAPTIONS")


@pytest.mark.skipif(not OWN_SUGARCREPE, reason="set REPAIR_HF_SUGARCREPE to the folder of SugarCrepe's seven files")
def test_sugarcrepe_has_its_published_cases(tmp_path):
    files = {name: json.loads((Path(OWN_SUGARCREPE) / f"{name}.json").read_text()) for name in SUGARCREPE}
    photographs = {row["filename"] for rows in files.values() for row in rows.values()}
    with pytest.raises(UserError, match="1,560 of 1,560 photographs"):
        load_benchmark("sugarcrepe", OWN_SUGARCREPE, [tmp_path])
    for name in photographs:
        (tmp_path / name).touch()  # looked for, not opened
    cases = load_benchmark("sugarcrepe", OWN_SUGARCREPE, [tmp_path])
    sizes = cases.benchmark, len(cases), len(set(cases.case_ids)), len(cases.pictures)
    assert sizes == ("sugarcrepe", 7511, 7511, 1560)
    assert Counter(cases.groups) == {name: len(rows) for name, rows in files.items()} == SUGARCREPE
    for case_id, (true, wrong), photograph in zip(cases.case_ids, cases.caption, cases.picture_ids, strict=True):
        category, _, number = case_id.partition("/")
        row = files[category][number]
        expected = row["caption"], row["negative_caption"], row["filename"]
        assert (cases.captions[true], cases.captions[wrong], photograph) == expected


@pytest.mark.skipif(not OWN_COCO, reason="set REPAIR_HF_COCO_CAPTIONS to COCO's captions_val2017.json")
def test_coco_has_its_published_captions(tmp_path):
    problems = Problems()
    rows = load_annotations(Path(OWN_COCO), str(tmp_path), problems)
    assert not problems.found()
    counts = [len(captions) for captions in rows["captions"]]
    assert (len(set(rows["image"])), sum(counts), min(counts), max(counts)) == (5000, 25014, 5, 7)
