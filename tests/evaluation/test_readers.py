"""The benchmarks in each layout in which people have them: made-up files, and every row where it belongs."""

from __future__ import annotations

import json
import re
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, Image
from hub_server import Client, Hub
from PIL import Image as Picture

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation import aro, judging, sugarcrepe, winoground
from repair_hf.evaluation.compositional import CompositionalOptions, load_benchmarks
from repair_hf.evaluation.hub import load_test_rows
from repair_hf.runtime.options import PairsOptions, UserError

COLORS = ("red", "green", "blue", "yellow")


@pytest.fixture
def photographs(tmp_path):
    """Left half of its color, right half white, so that a cut shows."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    for color in COLORS:
        picture = Picture.new("RGB", (40, 30), "white")
        picture.paste(color, (0, 0, 20, 30))
        picture.save(folder / f"{color}.png")
    return folder


def color_of(picture: Picture.Image) -> str:
    return next(
        color for color in COLORS if picture.getpixel((0, 0)) == Picture.new("RGB", (1, 1), color).getpixel((0, 0))
    )


# SugarCrepe++


@pytest.fixture
def plus_plus(tmp_path):
    """The five lists, of as many rows as the benchmark's."""
    for category, count in sugarcrepe.SUGARCREPE_PP.items():
        rows = [
            {"id": k, "filename": f"{COLORS[k % 4]}.png", "caption": f"{category} {k % 25}"}
            | {"caption2": f"{k % 25} {category}", "negative_caption": f"no {category} {k % 25}"}
            for k in range(count)
        ]
        (tmp_path / f"{category}.json").write_text(json.dumps(rows))
    return tmp_path


def test_sugarcrepe_pp_has_two_right_captions_and_a_wrong_one(plus_plus, photographs):
    cases = sugarcrepe.load_sugarcrepe_pp(plus_plus, [photographs])
    assert (cases.benchmark, len(cases), len(cases.pictures), cases.compares_captions) == (
        "sugarcrepe++",
        4757,
        4,
        True,
    )
    assert Counter(cases.groups) == sugarcrepe.SUGARCREPE_PP
    row = cases.case_ids.index("swap_obj/17")
    assert [cases.captions[k] for k in cases.caption[row]] == ["swap_obj 17", "17 swap_obj", "no swap_obj 17"]
    assert cases.picture_ids[row] == "green.png" and color_of(cases.pictures[cases.picture[row]][0]) == "green"


def test_sugarcrepe_pp_asks_the_picture_and_the_text():
    """Right is: each of the two beats the wrong one (p1, p2), both do (itt), they are nearest to each other (tot)."""
    scores = np.array([[[5, 4, 3]], [[5, 2, 3]], [[1, 2, 2]]], float)  # a picture by p1, p2, n
    between = np.array(
        [[[9, 5, 4], [5, 9, 4], [4, 4, 9]], [[9, 5, 4], [5, 9, 6], [4, 6, 9]], [[9, 5, 5], [5, 9, 1], [5, 1, 9]]],
        float,
    )
    margins = sugarcrepe._judge_triplet(scores, between)
    assert {name: margin.tolist() for name, margin in margins.items()} == {
        "p1": [2, 2, -1],
        "p2": [1, -1, 0],
        "itt": [1, -1, -1],
        "tot": [1, -1, 0],
    }


def test_sugarcrepe_pp_end_to_end(plus_plus, photographs, clip_folder):
    cases, encoder = sugarcrepe.load_sugarcrepe_pp(plus_plus, [photographs]), DualEncoder.from_pretrained(clip_folder)
    table = judging.evaluate_compositional(encoder, [cases], "m")
    found, rows = judging.compositional_metrics(table, [cases]), table.to_pandas()
    for measure in ("itt", "tot", "p1", "p2"):
        own = rows[rows["measure"] == measure]
        each = own.groupby("group")["correct"].mean()
        assert found[f"sugarcrepe++_macro_{measure}"] == pytest.approx(each.mean())
        assert found[f"sugarcrepe++_swap_att_{measure}"] == pytest.approx(each["swap_att"])
        assert found[f"sugarcrepe++_micro_{measure}"] == pytest.approx(own["correct"].mean())
    one = rows[(rows["measure"] == "tot") & (rows["case_id"] == "replace_rel/3")]["margin"].item()
    a, b, wrong = encoder.embed_texts(["replace_rel 3", "3 replace_rel", "no replace_rel 3"])
    assert one == pytest.approx(a @ b - max(a @ wrong, b @ wrong), abs=1e-6)


# Winoground


WINO = {"image_0": ["red", "green"], "image_1": ["blue", "yellow"], "caption_0": ["r", "g"], "caption_1": ["b", "y"]}


def check_winoground(cases):
    assert (cases.benchmark, len(cases), len(cases.pictures)) == ("winoground_subset", 2, 4)
    shown = [[color_of(picture) for picture in cases.pictures[row]] for row in cases.picture]
    assert shown == [["red", "blue"], ["green", "yellow"]]
    assert [[cases.captions[k] for k in row] for row in cases.caption] == [["r", "b"], ["g", "y"]]


def test_winoground_from_its_folder(photographs, tmp_path):
    rows = [{"id": 7 + k} | {name: values[k] for name, values in WINO.items()} for k in range(2)]
    rows.append({"id": 9, "image_0": "red", "image_1": "gone", "caption_0": "a", "caption_1": "b"})
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, rows)))
    cases = winoground.load_winoground(str(tmp_path), [photographs], subset=True)
    check_winoground(cases)
    assert cases.case_ids == cases.picture_ids == ["7", "8"]
    with pytest.raises(
        UserError,
        match="`winoground` has 400 cases, and 2 can be evaluated here; 1 photographs are missing .'gone.png'",
    ):
        winoground.load_winoground(str(tmp_path), [photographs])
    for text, said in (
        ('{"id": 0, "image_0": "red"}', "line 1 needs the texts image_0, image_1, caption_0, caption_1, got {"),
        ("[]", r"line 1 needs the texts .* got \[\]"),
        ("\n{not json", "line 2 is not JSON"),
    ):
        (tmp_path / "examples.jsonl").write_text(text)
        with pytest.raises(UserError, match=said):
            winoground.load_winoground(str(tmp_path), [photographs])


def with_images(photographs, columns: dict, images: list[str]) -> Dataset:
    found = {name: list(values) for name, values in columns.items()}
    for name in images:
        found[name] = [str(photographs / f"{color}.png") for color in columns[name]]
    dataset = Dataset.from_dict(found)
    for name in images:
        dataset = dataset.cast_column(name, Image())
    return dataset


@pytest.mark.parametrize("form", ["parquet", "saved", "saved with splits"])
def test_winoground_as_a_dataset(photographs, tmp_path, form, monkeypatch):
    dataset, folder = with_images(photographs, WINO, ["image_0", "image_1"]), tmp_path / "dataset"
    if form == "saved with splits":
        DatasetDict({"train": dataset.select([0]), "test": dataset}).save_to_disk(str(folder))
    else:
        dataset.save_to_disk(str(folder))
    if form == "parquet":  # as the Hub has it: the images' bytes in the file
        whole = Dataset.load_from_disk(str(folder))
        (tmp_path / "parquet" / "data").mkdir(parents=True)
        whole.to_parquet(tmp_path / "parquet" / "data" / "test-00000-of-00001.parquet")
        monkeypatch.chdir(tmp_path)
        folder = "parquet"  # which is also the name of a reader of `datasets`
    check_winoground(winoground.load_winoground(str(folder), [], subset=True))


@pytest.mark.slow
def test_winoground_from_a_hub_by_its_id(photographs, pairs_folder, clip_folder, tmp_path):
    with_images(photographs, WINO, ["image_0", "image_1"]).save_to_disk(str(tmp_path / "dataset"))
    words = (
        f"evaluate --pairs {pairs_folder} --split all --model {clip_folder} --resamples 5 --output {tmp_path / 'out'}"
    )
    with Hub({"hf_goodgoodgoodgoodgood": "me"}) as hub:
        client = Client(hub, tmp_path / "home", "hf_goodgoodgoodgoodgood")
        push = f"DatasetDict(test=load_from_disk({str(tmp_path / 'dataset')!r})).push_to_hub('me/winoground')"
        client.run(f"from datasets import DatasetDict, load_from_disk\n{push}")
        wanted = ["--compositional", "winoground=me/winoground", "--compositional-subset"]
        code, out, err = client.main(*words.split(), *wanted)
        client.close()
    assert code == 0, err
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert found["winoground_subset_n_cases"] == 2 and "winoground subset group" in out


# ARO's Visual Genome parts


def vg_rows(kind: str, groups: list) -> list[dict]:
    return [
        {"image_path": f"{color}.png", "true_caption": f"{color} is right", "false_caption": f"right is {color}"}
        | {kind: group, "bbox_x": 10 * (k % 3), "bbox_y": 2, "bbox_w": 10, "bbox_h": 20}
        for k, (color, group) in enumerate(zip(COLORS * 10, groups, strict=False))
    ]


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
        assert part.getpixel((0, 0)) == Picture.open(photographs / f"{COLORS[row]}.png").getpixel((10 * row, 2))
    assert [cases.captions[k] for k in cases.caption[1]] == ["green is right", "right is green"]


@pytest.mark.parametrize("has", ["boxes", "parts"])
def test_vg_relation_as_a_dataset(photographs, tmp_path, has, clip_folder):
    """A copy with whole photographs and boxes; and one of the parts themselves, with the boxes by which they were cut."""
    rows = vg_rows("relation_name", ["eating", "on", "riding", "on"])
    boxes = [{side: row[f"bbox_{side}"] for side in "xywh"} for row in rows]
    columns = {name: [row[name] for row in rows] for name in ("true_caption", "false_caption", "relation_name")}
    columns |= {"image": list(COLORS), "bbox": boxes}
    if has == "parts":
        for row in rows:
            x = row["bbox_x"]
            part = Picture.open(photographs / row["image_path"]).crop((x, 2, x + 10, 22))
            part.save(photographs / row["image_path"])
    with_images(photographs, columns, ["image"]).save_to_disk(str(tmp_path / "dataset"))
    cases = aro.load_visual_genome("vg_relation", str(tmp_path / "dataset"), [], subset=True)
    assert (len(cases), cases.groups) == (4, ["eating", "on", "riding", "on"])
    parts = cases.pictures[cases.picture[:, 0]]
    assert [part.size for part in parts] == [(10, 20)] * 4 and parts[2].getpixel((0, 0)) == (255, 255, 255)
    assert judging.evaluate_compositional(DualEncoder.from_pretrained(clip_folder), [cases], "m").num_rows == 4


def test_a_dataset_must_have_a_test_split_and_its_columns(photographs, tmp_path):
    dataset = with_images(photographs, WINO, ["image_0", "image_1"])
    DatasetDict({"a": dataset, "b": dataset}).save_to_disk(str(tmp_path / "two"))
    with pytest.raises(UserError, match=r"has the splits \['a', 'b'\], and none named test"):
        load_test_rows(str(tmp_path / "two"), [])
    dataset.remove_columns("caption_1").save_to_disk(str(tmp_path / "less"))
    with pytest.raises(UserError, match="has the columns .*; it lacks caption_1"):
        winoground.load_winoground(str(tmp_path / "less"), [])
    with pytest.raises(UserError, match="`facebook/winoground` cannot be loaded as a dataset.*hf auth login"):
        winoground.load_winoground("facebook/winoground", [])


def test_files_that_are_not_what_they_should_be(photographs, tmp_path):
    path = tmp_path / "visual_genome_relation.json"
    path.write_text("[{}]")
    with pytest.raises(UserError, match="case 0: needs the texts image_path, true_caption, .*got {}"):
        aro.load_visual_genome("vg_relation", str(tmp_path), [])
    path.write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        aro.load_visual_genome("vg_relation", str(path), [])
    path.write_text("3")
    with pytest.raises(UserError, match="must hold a list of cases, got 3"):
        aro.load_visual_genome("vg_relation", str(path), [])
    for name in sugarcrepe.SUGARCREPE_PP:
        (tmp_path / f"{name}.json").write_text("null")
    with pytest.raises(UserError, match="replace_att.json must hold cases, by number or in a list, got None"):
        sugarcrepe.load_sugarcrepe_pp(tmp_path, [])
    for name, count in sugarcrepe.SUGARCREPE_PP.items():
        (tmp_path / f"{name}.json").write_text(json.dumps([{"filename": "x.png", "caption": "a"}] * count))
    with pytest.raises(UserError, match="replace_att.json, case 0: needs the texts filename, caption, caption2, neg"):
        sugarcrepe.load_sugarcrepe_pp(tmp_path, [])


@pytest.mark.parametrize(
    ("benchmark", "key", "value"),
    [
        ("vg_relation", "relation_name", None),
        ("vg_attribution", "attributes", ["red", None]),
        ("vg_relation", "image_path", None),
        ("vg_relation", "true_caption", None),
        ("vg_relation", "bbox_w", None),
        ("vg_relation", "bbox_x", "10"),
    ],
)
def test_a_case_that_lacks_a_text_or_a_number_is_named(photographs, tmp_path, benchmark, key, value):
    kind = aro.KIND[benchmark]
    rows = vg_rows(kind, ["on", "on"] if benchmark == "vg_relation" else [["red", "old"]] * 2)
    rows[1][key] = value
    (tmp_path / aro.FILES[benchmark]).write_text(json.dumps(rows))
    with pytest.raises(
        UserError, match=rf"{benchmark.removeprefix('vg_')}.json, case 1: needs the texts .*, {kind} \(a text or"
    ):
        aro.load_visual_genome(benchmark, str(tmp_path), [photographs], subset=True)


def test_a_dataset_whose_captions_have_gaps(photographs, tmp_path):
    rows = vg_rows("relation_name", ["eating", "on", "riding", "on"])
    columns = {name: [row[name] for row in rows] for name in ("true_caption", "false_caption", "relation_name")}
    columns["true_caption"][2] = None
    with_images(photographs, columns | {"image": list(COLORS)}, ["image"]).save_to_disk(str(tmp_path / "dataset"))
    with pytest.raises(UserError, match="dataset, case 2: needs the texts true_caption, false_caption, relation_name"):
        aro.load_visual_genome("vg_relation", str(tmp_path / "dataset"), [], subset=True)


def test_a_file_may_not_name_what_lies_outside(photographs, tmp_path):
    rows = vg_rows("relation_name", ["on", "on"])
    rows[0]["image_path"] = "../photographs/red.png"
    rows[1]["image_path"] = str(photographs / "red.png")
    (tmp_path / "visual_genome_relation.json").write_text(json.dumps(rows))
    with pytest.raises(UserError, match="and 0 can be evaluated here; 2 photographs are missing"):
        aro.load_visual_genome("vg_relation", str(tmp_path), [tmp_path / "x"], subset=True)


def test_a_picture_without_a_vector_is_named_by_its_case(photographs, tmp_path, clip_folder):
    (tmp_path / "visual_genome_relation.json").write_text(json.dumps(vg_rows("relation_name", ["on"] * 3)))
    cases = aro.load_visual_genome("vg_relation", str(tmp_path), [photographs], subset=True)
    encoder = DualEncoder.from_pretrained(clip_folder)
    encoder.model.visual_projection.weight.data.zero_()
    with pytest.raises(UserError, match=r"3 of 3 vectors are zero or not finite, first for image 0 \(of case 0\)"):
        judging.evaluate_compositional(encoder, [cases], "m")


def test_a_picture_that_is_torn_is_named(photographs, tmp_path, clip_folder):
    (tmp_path / "visual_genome_relation.json").write_text(json.dumps(vg_rows("relation_name", ["on"] * 3)))
    torn = photographs / vg_rows("relation_name", ["on"])[0]["image_path"]
    torn.write_bytes(torn.read_bytes()[:60])
    cases = aro.load_visual_genome("vg_relation", str(tmp_path), [photographs], subset=True)
    with pytest.raises(UserError, match=rf"^{re.escape(str(torn))} of a compositional benchmark cannot be decoded"):
        judging.evaluate_compositional(DualEncoder.from_pretrained(clip_folder), [cases], "m")


def test_boxes_that_are_no_boxes_are_said(photographs, tmp_path):
    columns = {name: ["a", "b"] for name in ("true_caption", "false_caption", "relation_name")}
    columns |= {"image": list(COLORS)[:2], "bbox": [[0, 2, 10, 20]] * 2}
    with_images(photographs, columns, ["image"]).save_to_disk(str(tmp_path / "dataset"))
    with pytest.raises(UserError, match="case 0: `bbox` must hold the numbers x, y, w, h, got .0, 2, 10, 20."):
        aro.load_visual_genome("vg_relation", str(tmp_path / "dataset"), [], subset=True)


def test_each_name_goes_to_its_reader(plus_plus, photographs):
    options = CompositionalOptions(
        compositional=[f"sugarcrepe++={plus_plus}"], compositional_images=[str(photographs)]
    )
    (cases,) = load_benchmarks(options, None, PairsOptions(pairs="x"))
    assert cases.benchmark == "sugarcrepe++"


def test_other_cases_under_the_same_path_are_another_evaluation(
    photographs, tmp_path, pairs_folder, clip_folder, capsys
):
    path = tmp_path / "visual_genome_relation.json"
    words = (
        f"evaluate --pairs {pairs_folder} --split all --model {clip_folder} --resamples 5 --output {tmp_path / 'out'}"
    )
    words += f" --compositional vg_relation={path} --compositional-images {photographs} --compositional-subset"
    path.write_text(json.dumps(vg_rows("relation_name", ["on", "on"])))
    assert main(words.split()) == 0
    path.write_text(json.dumps(vg_rows("relation_name", ["on", "on", "on"])))
    assert main(words.split()) == 2 and "cases_fingerprints" in capsys.readouterr().err
