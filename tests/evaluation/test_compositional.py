"""Options of compositional benchmarks, the name under which cases are reported, and files that are not theirs."""

import json

import pytest
from benchmark_files import vg_rows

from repair_hf.evaluation import aro, sugarcrepe
from repair_hf.evaluation.cases import whole_or_subset
from repair_hf.evaluation.compositional import CompositionalOptions, load_benchmarks
from repair_hf.runtime.options import PairsOptions, UserError


@pytest.mark.parametrize(
    "found, missing, name", [(3, [], "b"), (2, [], "b_subset"), (4, [], "b_subset"), (3, ["x"], "b_subset")]
)
def test_only_the_whole_benchmark_has_its_name(found, missing, name):
    assert whole_or_subset("b", found=found, published=3, missing=missing, subset=True) == name


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (dict(compositional=["aro"]), "takes world, order, .* got 'aro'"),
        (dict(compositional=["sugarcrepe"]), "sugarcrepe=FOLDER"),
        (dict(compositional=["world=x"]), "takes no path, got x"),
        (dict(compositional=["order", "order=world"]), "names order twice"),
        (dict(order_seeds=[1, 1]), "takes one or more different numbers from 0 to 4294967295, got .1, 1."),
        (dict(compositional=["order=world"], order_seeds=[2**32]), "`order_seeds` takes .*, got .4294967296."),
        (dict(order_seeds=[2]), "`order_seeds` .2. is for `compositional` order; give it"),
        (dict(compositional=["world"], compositional_subset=True), "are for benchmarks of photographs"),
    ],
)
def test_options_that_cannot_work_raise(named, message):
    with pytest.raises(UserError, match=message):
        CompositionalOptions(**named)


def visual_genome(benchmark: str, **cells):
    """The file of a part of ARO, of two cases, with other cells in the second."""
    kind = aro.KIND[benchmark]
    rows = vg_rows(kind, ["on", "on"] if benchmark == "vg_relation" else [["red", "old"]] * 2)
    return {aro.FILES[benchmark]: json.dumps([rows[0], rows[1] | cells])}


def of_all(content: str) -> dict[str, str]:
    return {f"{name}.json": content for name in sugarcrepe.SUGARCREPE}


@pytest.mark.parametrize(
    ("benchmark", "files", "message"),
    [
        ("vg_relation", {aro.FILES["vg_relation"]: "{"}, "visual_genome_relation.json is damaged"),
        ("vg_relation", {aro.FILES["vg_relation"]: "3"}, "must hold a list of cases, got 3"),
        ("vg_relation", visual_genome("vg_relation", relation_name=None), "case 1: needs `relation_name`, a text or"),
        ("vg_attribution", visual_genome("vg_attribution", attributes=["red", None]), "case 1: needs `attributes`"),
        ("vg_relation", visual_genome("vg_relation", image_path=None), "case 1: needs the texts image_path, got"),
        ("vg_relation", visual_genome("vg_relation", true_caption=None), "case 1: needs the texts true_caption, fal"),
        ("vg_relation", visual_genome("vg_relation", bbox_w=None), "case 1: needs a box of the numbers bbox_x"),
        ("vg_relation", visual_genome("vg_relation", bbox_x="10"), "case 1: needs a box of the numbers bbox_x"),
        ("sugarcrepe", {}, "lacks add_att.json, add_obj.json"),
        ("sugarcrepe", of_all("{}"), "has 0 cases; the benchmark's has 692"),
        ("sugarcrepe", of_all("null"), "add_att.json must hold cases, by number or in a list, got None"),
        ("sugarcrepe", of_all(json.dumps([{"filename": "x"}] * 692)), "json, case 0: needs the texts filename, cap"),
        ("winoground", {"examples.jsonl": '{"image_0": "red"}'}, "line 1 needs the texts image_0, image_1, caption"),
        ("winoground", {"examples.jsonl": "[]"}, r"line 1 needs the texts .* got \[\]"),
        ("winoground", {"examples.jsonl": "\n{not json"}, "line 2 is not JSON"),
    ],
)
def test_files_that_are_not_the_benchmarks_raise(benchmark, files, message, photographs, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    words = dict(compositional=[f"{benchmark}={tmp_path}"], compositional_images=[str(photographs)])
    with pytest.raises(UserError, match=message):
        load_benchmarks(CompositionalOptions(**words, compositional_subset=True), None, PairsOptions(pairs="x"))
