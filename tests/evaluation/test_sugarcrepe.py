"""SugarCrepe and SugarCrepe++ from made-up files: every row where it belongs, and the margins of paraphrases."""

import json
from collections import Counter

import numpy as np
import pytest
from benchmark_files import COLORS, color_of

from repair_hf.evaluation import judging, sugarcrepe
from repair_hf.evaluation.compositional import CompositionalOptions, load_benchmarks
from repair_hf.runtime.options import PairsOptions


@pytest.fixture
def cases(tmp_path, photographs):
    """SugarCrepe++'s five lists, of as many rows as the benchmark's."""
    for category, count in sugarcrepe.SUGARCREPE_PP.items():
        rows = [
            {"id": k, "filename": f"{COLORS[k % 4]}.png", "caption": f"{category} {k % 25}"}
            | {"caption2": f"{k % 25} {category}", "negative_caption": f"no {category} {k % 25}"}
            for k in range(count)
        ]
        (tmp_path / f"{category}.json").write_text(json.dumps(rows))
    words = dict(compositional=[f"sugarcrepe++={tmp_path}"], compositional_images=[str(photographs)])
    (cases,) = load_benchmarks(CompositionalOptions(**words), None, PairsOptions(pairs="x"))
    return cases


def test_sugarcrepe_pp_has_two_right_captions_and_a_wrong_one(cases):
    sizes = cases.benchmark, len(cases), len(cases.pictures), cases.compares_captions
    assert sizes == ("sugarcrepe++", 4757, 4, True)
    assert Counter(cases.groups) == sugarcrepe.SUGARCREPE_PP
    row = cases.case_ids.index("swap_obj/17")
    assert [cases.captions[k] for k in cases.caption[row]] == ["swap_obj 17", "17 swap_obj", "no swap_obj 17"]
    assert cases.picture_ids[row] == "green.png" and color_of(cases.pictures[cases.picture[row]][0]) == "green"


def test_sugarcrepe_pp_asks_the_picture_and_the_text():
    """Right is: each of the two beats the wrong one (p1, p2), both do (itt), they are nearest to each other (tot)."""
    scores = np.array([[[5, 4, 3]], [[5, 2, 3]], [[1, 2, 2]]], float)  # a picture by p1, p2, n
    between = [[[9, 5, 4], [5, 9, 4], [4, 4, 9]], [[9, 5, 4], [5, 9, 6], [4, 6, 9]], [[9, 5, 5], [5, 9, 1], [5, 1, 9]]]
    margins = sugarcrepe._judge_triplet(scores, np.array(between, float))
    expected = {"p1": [2, 2, -1], "p2": [1, -1, 0], "itt": [1, -1, -1], "tot": [1, -1, 0]}
    assert {name: margin.tolist() for name, margin in margins.items()} == expected


def test_sugarcrepe_pp_end_to_end(cases, encoder):
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
