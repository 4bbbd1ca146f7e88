"""Agreement between people and the audit: the paper's own figures, slow references, and answers made by hand."""

import json

import numpy as np
import pandas as pd
import pytest

from repair_hf.analysis.people.agreement import (
    annotator_agreement,
    edit_quality,
    failure_modes,
    qc_agreement,
    qc_metrics,
    share_of,
)
from repair_hf.records.answers import CRITERIA, majority, read_answers


def by_hand(a: float, b: float, c: float, d: float) -> dict[str, float]:
    n = a + b + c + d
    accuracy, expected = (a + d) / n, ((a + b) * (a + c) + (c + d) * (b + d)) / n**2
    kappa = (accuracy - expected) / (1 - expected)
    return {"precision": a / (a + b), "recall": a / (a + c), "accuracy": accuracy, "kappa": kappa}


@pytest.mark.parametrize("cells", [(240, 26, 46, 88), (10, 3, 2, 5), (1.5, 0.5, 0.25, 7.0)])
def test_metrics_of_a_table(cells):
    assert qc_metrics(cells) == pytest.approx(by_hand(*cells))
    assert {name: values[0] for name, values in qc_metrics([cells, (1, 2, 3, 4)]).items()} == qc_metrics(cells)


def items(**strata: tuple[int, int]) -> pd.DataFrame:
    """`accepted_t2i=(n, population)`."""
    rows = []
    for name, (n, population) in strata.items():
        verdict, direction = name.split("_")
        cells = {"folder": 0, "direction": direction, "population": population}
        cells["accepted"] = verdict == "accepted"
        rows += [{"item": f"{name}-{k}", "record_id": f"{name}-{k}", **cells} for k in range(n)]
    return pd.DataFrame(rows)


def said(annotator: str, values: dict[str, object], column: str = "verdict") -> pd.DataFrame:
    return pd.DataFrame([{"annotator": annotator, "item": item, column: value} for item, value in values.items()])


def test_a_stratum_weighs_what_it_was_drawn_from():
    drawn = items(accepted_t2i=(10, 900), rejected_t2i=(10, 100))
    is_genuine = lambda name, k: k < (9 if name.startswith("accepted") else 5)  # noqa: E731
    values = {i: "genuine" if is_genuine(i, int(i.split("-")[1])) else "gt_invalid" for i in drawn["item"]}
    row = qc_agreement(drawn, said("ann", values)).iloc[0]
    whole = by_hand(900 * 0.9, 900 * 0.1, 100 * 0.5, 100 * 0.5)
    assert {name: row[name] for name in whole} == pytest.approx(whole)
    assert row[["accepted, genuine", "accepted, not", "rejected, genuine", "rejected, not"]].tolist() == [9, 1, 5, 5]
    assert all(row[f"{name}_low"] < row[name] < row[f"{name}_high"] for name in whole)


def test_rounds_of_one_dataset_weigh_what_each_of_them_holds():
    large, small = (
        items(accepted_t2i=(20, population)).assign(folder=place, item=lambda t, place=place: f"{place}:" + t["item"])
        for place, population in enumerate((10_000, 500))
    )
    drawn = pd.concat([large, small], ignore_index=True)
    is_good = [True] * 20 + [True] * 10 + [False] * 10
    truth = (10_000 + 500 / 2) / 10_500
    assert share_of(drawn.assign(good=is_good), "good")["share"] == pytest.approx(truth)
    verdicts = ["genuine" if good else "gt_invalid" for good in is_good]
    row = qc_agreement(drawn, said("ann", dict(zip(drawn["item"], verdicts, strict=True)))).iloc[0]
    assert row["precision"] == pytest.approx(truth)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng, truth, hits = np.random.default_rng(0), 0.85, 0
    for trial in range(200):
        drawn = items(accepted_t2i=(60, 700), accepted_i2t=(60, 300))
        drawn["bad"] = np.concatenate([rng.random(60) < 0.88, rng.random(60) < 0.78])  # 0.7 * 0.88 + 0.3 * 0.78 = 0.85
        found = share_of(drawn, "bad", seed=trial)
        hits += found["low"] <= truth <= found["high"]
    assert 180 <= hits <= 199


def test_criteria_modes_and_the_share_of_bad_records():
    drawn = items(accepted_t2i=(4, 300), accepted_i2t=(4, 100))
    good = dict.fromkeys(CRITERIA, True)
    rows = [{"annotator": "ann", "item": item, **good, "mode": None} for item in drawn["item"]]
    rows[0] |= {"valid_contrast": False, "edit_minimal": False, "mode": "scaffold_drift"}
    answers = pd.DataFrame(rows)
    table = edit_quality(drawn, answers).set_index(["group", "criterion"])
    assert table.loc[("t2i", "edit_minimal"), "met"] == 3 and table.loc[("i2t", "edit_minimal"), "share"] == 1
    good = table.loc[("all", "valid_contrast")]
    assert good["share"] == pytest.approx(1 - 0.75 * 0.25) and good["items"] == 8 and good["high"] < 1
    modes = failure_modes(drawn, answers).set_index("mode")
    assert modes.loc["scaffold_drift"].to_dict() == {"t2i": 1, "total": 1} and modes["total"].sum() == 1
    assert failure_modes(drawn, answers[1:])["total"].sum() == 0  # nothing failed


def test_an_edit_that_most_approve_has_no_failure_mode():
    drawn = items(accepted_t2i=(2, 2))
    modes = {"ann": ["artifact", "artifact"], "bob": [None, "artifact"], "eve": [None, None]}
    rows = [
        {"annotator": who, "item": item, "mode": mode}
        for who, of_items in modes.items()
        for item, mode in zip(drawn["item"], of_items, strict=True)
    ]
    found = failure_modes(drawn, pd.DataFrame(rows)).set_index("mode")["total"]
    assert found["artifact"] == found.sum() == 1


def test_annotators_are_joined_by_majority_and_compared_in_pairs():
    answers = pd.concat(
        [
            said("ann", {"a": "genuine", "b": "genuine", "c": "gt_invalid", "d": "genuine"}),
            said("bob", {"a": "genuine", "b": "gt_invalid", "c": "gt_invalid"}),
            said("cleo", {"a": "gt_invalid", "b": "gt_invalid", "c": "genuine"}),
        ]
    )
    of_two = {"a": "genuine", "c": "gt_invalid", "d": "genuine"}  # b is split evenly
    assert majority(answers, "verdict").to_dict() == of_two | {"b": "gt_invalid"}
    two = answers[answers["annotator"] != "cleo"]
    assert majority(two, "verdict").to_dict() == of_two
    row = annotator_agreement(two, ["verdict"]).iloc[0]
    assert (row["annotators"], row["items"], row["agreement"]) == ("ann, bob", 3, pytest.approx(2 / 3))
    assert row["kappa"] == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))


def test_the_last_answer_counts_and_a_half_written_one_does_not(tmp_path):
    lines = [{"annotator": "ann", "item": "a", "verdict": verdict} for verdict in ("genuine", "gt_invalid")]
    folder = tmp_path / "qc"
    (folder / "answers").mkdir(parents=True)
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"annotator": "ann", "item": "b"'
    (folder / "answers" / "ann.jsonl").write_text(text)
    assert read_answers(folder)[["item", "verdict"]].to_dict("records") == [{"item": "a", "verdict": "gt_invalid"}]
