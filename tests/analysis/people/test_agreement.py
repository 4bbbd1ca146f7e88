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
from repair_hf.analysis.people.judgements import CRITERIA, majority, read_judgements, valid_edits
from repair_hf.runtime.options import UserError


def by_hand(a: float, b: float, c: float, d: float) -> dict[str, float]:
    n = a + b + c + d
    accuracy, expected = (a + d) / n, ((a + b) * (a + c) + (c + d) * (b + d)) / n**2
    kappa = (accuracy - expected) / (1 - expected)
    return {"precision": a / (a + b), "recall": a / (a + c), "accuracy": accuracy, "kappa": kappa}


@pytest.mark.parametrize("cells", [(240, 26, 46, 88), (10, 3, 2, 5), (1.5, 0.5, 0.25, 7.0)])
def test_metrics_of_a_table(cells):
    assert qc_metrics(cells) == pytest.approx(by_hand(*cells))
    assert {name: values[0] for name, values in qc_metrics([cells, (1, 2, 3, 4)]).items()} == qc_metrics(cells)


def items(**strata: int) -> pd.DataFrame:
    """All items of a run: `accepted_t2i=population`."""
    rows = []
    for name, population in strata.items():
        verdict, direction = name.split("_")
        row = {"direction": direction, "accepted": verdict == "accepted"}
        rows += [{"item": f"{name}-{k}", **row} for k in range(population)]
    return pd.DataFrame(rows)


def said(annotator: str, values: dict[str, object], column: str = "verdict") -> pd.DataFrame:
    return pd.DataFrame([{"annotator": annotator, "item": item, column: value} for item, value in values.items()])


def verdicts(**counts: tuple[int, int]) -> pd.DataFrame:
    """Verdicts on the first items of strata: `accepted_t2i=(judged, genuine)`."""
    named = {
        f"{name}-{k}": "genuine" if k < genuine else "gt_invalid"
        for name, (judged, genuine) in counts.items()
        for k in range(judged)
    }
    return said("ann", named)


def test_a_stratum_weighs_what_it_was_drawn_from():
    answers = verdicts(accepted_t2i=(10, 9), rejected_t2i=(10, 5))
    row = qc_agreement(items(accepted_t2i=900, rejected_t2i=100), answers).iloc[0]
    whole = by_hand(900 * 0.9, 900 * 0.1, 100 * 0.5, 100 * 0.5)
    assert {name: row[name] for name in whole} == pytest.approx(whole)
    assert row[["accepted, genuine", "accepted, not", "rejected, genuine", "rejected, not"]].tolist() == [9, 1, 5, 5]
    assert all(row[f"{name}_low"] < row[name] < row[f"{name}_high"] for name in whole)


def test_no_answer_is_no_number():
    drawn = items(accepted_t2i=20, accepted_i2t=20, rejected_t2i=20)
    table = qc_agreement(drawn, verdicts(accepted_t2i=(4, 3), accepted_i2t=(4, 4))).set_index("group")
    assert table.loc["all", "precision"] == pytest.approx(3.5 / 4) and table.loc["i2t", "recall"] == 1
    unknown = table.loc[["all", "t2i"], ["recall", "recall_low", "accuracy", "kappa", "kappa_high"]]
    assert unknown.isna().all(axis=None)  # nobody judged a rejected failure
    answers = pd.concat([verdicts(accepted_t2i=(4, 4)), verdicts(accepted_t2i=(4, 0)).assign(annotator="bob")])
    table = qc_agreement(drawn, answers)
    assert table["items"].tolist() == [0, 0, 0] and table[["precision", "precision_low", "kappa"]].isna().all(
        axis=None
    )
    met = share_of(drawn.assign(met=[True] * 20 + [None] * 40), "met")
    assert all(np.isnan(value) for value in met.values())


@pytest.mark.parametrize(("met", "low", "high"), [(10, 0.783, 1.0), (0, 0.0, 0.217)])
def test_the_interval_of_a_share_is_that_of_jeffreys_prior(met, low, high):
    """Of ten items; a uniform prior gives 0.715 and 0.285. It is drawn, so its bounds are not exact."""
    row = share_of(items(accepted_t2i=10).assign(met=[True] * met + [False] * (10 - met)), "met")
    assert (row["share"], row["low"], row["high"]) == pytest.approx((met / 10, low, high), abs=0.03)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    rng, truth, hits = np.random.default_rng(0), 0.85, 0
    everything = items(accepted_t2i=700, accepted_i2t=300)
    for trial in range(200):
        drawn = everything.assign(bad=pd.Series(dtype=bool))
        drawn.loc[drawn.index[:60], "bad"] = rng.random(60) < 0.88
        drawn.loc[drawn.index[-60:], "bad"] = rng.random(60) < 0.78  # 0.7 * 0.88 + 0.3 * 0.78 = 0.85
        found = share_of(drawn, "bad", seed=trial)
        hits += found["low"] <= truth <= found["high"]
    assert 180 <= hits <= 199


def test_criteria_modes_and_the_share_of_bad_records():
    drawn, good = items(accepted_t2i=300, accepted_i2t=100), dict.fromkeys(CRITERIA, True)
    judged = [f"accepted_{way}-{k}" for way in ("t2i", "i2t") for k in range(4)]
    rows = [{"annotator": "ann", "item": item, **good, "mode": None} for item in judged]
    rows[0] |= {"valid_contrast": False, "edit_minimal": False, "mode": "scaffold_drift"}
    answers = pd.DataFrame(rows)
    table = edit_quality(drawn, answers).set_index(["group", "criterion"])
    assert table.loc[("t2i", "edit_minimal"), "met"] == 3 and table.loc[("i2t", "edit_minimal"), "share"] == 1
    good = table.loc[("all", "valid_contrast")]
    assert good["share"] == pytest.approx(1 - 0.75 * 0.25) and good["items"] == 8 and good["high"] < 1
    modes = failure_modes(drawn, answers).set_index("mode")
    assert modes.loc["scaffold_drift"].to_dict() == {"i2t": 0, "t2i": 1, "total": 1} and modes["total"].sum() == 1
    assert failure_modes(drawn, answers[1:])["total"].sum() == 0  # nothing failed
    disagreed = pd.concat([answers[:1], answers[:1].assign(annotator="bob", mode="artifact")])
    assert failure_modes(drawn, disagreed)["total"].isna().all()


def test_an_edit_that_most_approve_has_no_failure_mode():
    drawn = items(accepted_t2i=2)
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


def judgements(path, answers: dict, *, task: str = "qc", annotator: str = "ann"):
    path.write_text(json.dumps({"task": task, "annotator": annotator, "answers": answers}))
    return path


def test_files_of_judgements_are_joined_and_the_later_one_counts(tmp_path):
    first = judgements(tmp_path / "1.json", {"a": {"verdict": "genuine"}, "b": {"verdict": "genuine"}})
    later = judgements(tmp_path / "2.json", {"a": {"verdict": "gt_invalid"}})
    other = judgements(tmp_path / "3.json", {"a": {"verdict": "genuine"}}, annotator="bob")
    rows = read_judgements([first, later, other])["qc"].sort_values(["annotator", "item"])
    assert rows[["annotator", "item", "verdict"]].values.tolist() == [
        ["ann", "a", "gt_invalid"], ["ann", "b", "genuine"], ["bob", "a", "genuine"]
    ]  # fmt: skip
    assert read_judgements([judgements(tmp_path / "4.json", {})]) == {}


GOOD = dict.fromkeys(CRITERIA, True) | {"mode": None}


def test_the_records_whose_edits_people_found_valid(tmp_path):
    answers = {"a": GOOD, "b": GOOD | {"valid_contrast": False, "mode": "artifact"}, "c": GOOD}
    files = [judgements(tmp_path / "ann.json", answers, task="edits")]
    files.append(judgements(tmp_path / "bob.json", {"c": answers["b"]}, task="edits", annotator="bob"))
    assert valid_edits(files) == {"a"}
    with pytest.raises(UserError, match="judges no edits. Run `repair-hf annotate edits`"):
        valid_edits([judgements(tmp_path / "qc.json", {"a": {"verdict": "genuine"}})])


DAMAGED = [
    b"[" * 9000,
    b"[1]",
    b"{}",
    b"\xff\xfe",
    *(
        json.dumps({"task": "qc", "annotator": "ann", "answers": {"a": {"verdict": "genuine"}}} | change).encode()
        for change in (
            {"task": "other"},
            {"annotator": 5},
            {"answers": [1]},
            {"answers": {"a": "genuine"}},
            {"answers": {"a": {"verdict": "maybe"}}},
            {"answers": {"a": {"verdict": ["genuine"]}}},
            {"task": "edits", "answers": {"a": GOOD | {"fp_wrong": 1}}},
            {"task": "edits", "answers": {"a": GOOD | {"mode": "other"}}},
        )
    ),
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_file_that_no_page_saved_is_an_error_of_one_line(content, tmp_path):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(UserError, match="x.json is damaged .*Give a file that the page of `repair-hf annotate` saved"):
        read_judgements([tmp_path / "x.json"])
    with pytest.raises(UserError, match="There is no file of judgements"):
        read_judgements([tmp_path / "y.json"])
