"""Where failures were lost, which errors they had, how small the edits are, and what items were confused with."""

from dataclasses import replace

import pandas as pd
import pytest
from datasets import Dataset

from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.run_findings import DENSITY, anchors, edit_similarity, error_finding, funnel, lost_at, reasons

NOTHING = RunData("run", "run", None, (), {}, Dataset.from_dict({}), pd.DataFrame(), pd.DataFrame())


def test_drops_without_an_audit_are_not_lost_there():
    columns = ["direction", "reason", "fp_reason", "edit_instruction"]
    dropped = pd.DataFrame(
        [["t2i", "no_op", None, None], ["t2i", "editor_failed", None, "make it red"]], columns=columns
    )
    kept = pd.DataFrame([["t2i", None, None, "make it blue"]], columns=columns)
    data = replace(NOTHING, kept=kept, dropped=dropped)
    assert funnel(data).table.set_index("stage")["t2i"].to_dict() == {"mined": 3, "instructed": 2, "became records": 1}
    audited = funnel(replace(data, kept=kept.assign(fp_reason="a cat"))).table.set_index("stage")
    assert audited.loc["passed the audit", ["t2i", "t2i, of mined"]].tolist() == [1, "33.3%"]


def test_where_failures_are_lost():
    rows = [
        {"reason": "gt_invalid", "fp_reason": "so", "edit_instruction": None},
        {"reason": "llm_unparsed", "fp_reason": None, "edit_instruction": None},
        {"reason": "llm_refused", "fp_reason": "so", "edit_instruction": None},
        {"reason": "no_op", "fp_reason": "so", "edit_instruction": "No change."},
    ]
    assert lost_at(pd.DataFrame(rows)).tolist() == ["audit", "audit", "instruct", "edit"]


KEPT = pd.DataFrame(
    [
        ("i2t", "a", ["Object", "Count"], 0.8, "image-1", "caption-1"),
        ("i2t", "b", ["Object"], 0.6, "image-1", "caption-2"),
        ("t2i", "c", ["Object"], 0.5, "caption-1", "image-1"),
        ("t2i", "d", ["Count"], None, "caption-1", "image-2"),
        ("t2i", "e", [], 0.7, "caption-3", "image-1"),
    ],
    columns=["direction", "record_id", "error_types", "edit_similarity", "q_id", "fp_id"],
)


def test_error_shares_and_similarities_are_those_of_both_directions():
    data = replace(NOTHING, kept=KEPT)
    shares = error_finding(data).table.set_index("error")
    assert shares["i2t"].drop(["Object", "Count", DENSITY]).sum() == 0
    assert shares.loc[["Object", "Count", DENSITY]].to_numpy().tolist() == [[0.5, 1.0], [0.5, 0.5], [1.0, 1.5]]
    found = edit_similarity(data).data.set_index(["error", "direction"])
    assert found.loc[("Object", "i2t"), ["count", "mean", "median"]].tolist() == pytest.approx([2, 0.7, 0.7])
    assert found.loc[("Object", "i2t"), "std"] == pytest.approx(0.02**0.5)
    assert found.loc[("all", "t2i"), "mean"] == pytest.approx(0.6) and ("Count", "t2i") not in found.index


def test_hard_negatives_are_counted_from_both_sides():
    """image-1 was confused with the captions 1 and 2, which it retrieved, and 1 and 3, which retrieved it."""
    positives, negatives = (found.table.set_index(found.name) for found in anchors(replace(NOTHING, kept=KEPT)))
    assert positives.to_dict() == {"t2i": {"1": 1, "2": 1}, "i2t": {"1": 0, "2": 1}}
    assert negatives.to_dict() == {"t2i": {"1": 2, "2": 1, "3": 0}, "i2t": {"1": 1, "2": 0, "3": 1}}
    note = anchors(replace(NOTHING, kept=KEPT))[1].note
    assert "captions (T2I): median 1, at most 2" in note and "images (I2T): median 2, at most 3" in note


def test_a_run_without_records_has_empty_findings():
    data = replace(NOTHING, kept=KEPT[:0], dropped=pd.DataFrame(columns=["reason", "direction"]))
    empty = [error_finding(data), edit_similarity(data), *anchors(data), reasons(data)]
    assert [finding.note for finding in empty[2:4]] == ["There are no records."] * 2
    bars = [bar for finding in empty if finding.plot is not None for _, bars in finding.plot.rows for bar in bars]
    assert not any(bar.length for bar in bars)
