"""Findings from ranks, rounds and counts, on tables small enough to count by hand."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

from repair_hf.analysis.answers import did_it_work
from repair_hf.analysis.errors import DENSITY, error_shares
from repair_hf.analysis.funnel import funnel, lost_at
from repair_hf.analysis.repairs import find_queries, recall_changes, round_finding
from repair_hf.analysis.run_data import RunData
from repair_hf.evaluation.ranks import save_ranks


def ranks(model: str, *rank: int) -> pa.Table:
    n = len(rank)
    ids = [f"c{k}" for k in range(n)]
    score = np.linspace(0.9, 0.5, n).astype(np.float32)
    columns = {"model": [model] * n, "direction": ["t2i"] * n, "q_id": ids}
    columns |= {"gt_id": ids, "gt_score": score, "gt_rank": list(rank)}
    return pa.table(columns | {"fp_id": ids, "fp_score": score - np.float32(0.1), "top1_id": ids})


def test_a_runs_ranks_are_found_and_set_against_its_base(tmp_path):
    """Those of as many queries of another split are not."""
    elsewhere = ranks("repair-0", 2, 1, 2, 1)
    elsewhere = elsewhere.set_column(2, "q_id", pa.array([f"d{k}" for k in range(4)]))
    for place, table in {
        "evaluate/base": ranks("base", 1, 2, 3, 1),
        "evaluate/repair-0": ranks("repair-0", 2, 1, 2, 1),
        "other-split": elsewhere,
    }.items():
        (tmp_path / place).mkdir(parents=True)
        save_ranks(table, tmp_path / place)
    found = find_queries(tmp_path)
    assert found["change"].tolist() == ["broken", "repaired", "improved", "unchanged"]
    assert set(found["model"]) == {"evaluate/repair-0"}
    assert find_queries(tmp_path / "evaluate" / "repair-0") is None


def compared(folder, *now: int) -> None:
    """What `repair-hf evaluate base new` leaves in a folder."""
    for name, of_model in (("base", (1, 2)), ("new", now)):
        (folder / name).mkdir(parents=True)
        save_ranks(ranks(name, *of_model), folder / name)
    pq.write_table(pa.table({"reference": ["base"], "model": ["new"]}), folder / "queries.parquet")


def test_one_model_on_two_splits_is_found_twice(tmp_path):
    compared(tmp_path / "validation", 1, 1)
    assert set(find_queries(tmp_path)["model"]) == {"new"}
    compared(tmp_path / "test", 2, 2)
    found = find_queries(tmp_path).set_index("model")["change"]
    assert found["validation/new"].tolist() == ["unchanged", "repaired"]
    assert found["test/new"].tolist() == ["broken", "unchanged"]


def test_drops_without_an_audit_are_not_lost_there():
    columns = ["direction", "reason", "fp_reason", "edit_instruction"]
    dropped = pd.DataFrame(
        [["t2i", "no_op", None, None], ["t2i", "editor_failed", None, "make it red"]], columns=columns
    )
    kept = pd.DataFrame([["t2i", None, None, "make it blue"]], columns=columns)
    data = RunData("run", None, (), Dataset.from_dict({}), kept, dropped)
    table = funnel(data).table.set_index(["direction", "stage"])["failures"]["t2i"]
    assert table.to_dict() == {"mined": 3, "instructed": 2, "became records": 1}
    audited = funnel(replace(data, kept=kept.assign(fp_reason="a cat"))).table.set_index(["direction", "stage"])
    assert audited.loc[("t2i", "passed the audit"), "failures"] == 1


@pytest.mark.parametrize(
    "now, verdict, change", [([1] * 9, "Yes", 100), ([1] + [2] * 8, "No", 11.1), ([2] * 9, "No", 0)]
)
def test_the_report_opens_with_the_change_of_recall(now, verdict, change):
    """One query of nine may as well be chance: its interval holds 0."""
    found = recall_changes({"evaluate/new": (ranks("base", *[2] * 9), ranks("new", *now))})
    row = found.iloc[0]
    assert row["before"] == 0 and row["after"] == row["change"] == pytest.approx(change, abs=0.1)
    assert row["low"] <= row["change"] <= row["high"] and (row["low"] > 0) == (verdict == "Yes")
    told = did_it_work(found)
    assert told.note.startswith(f"{verdict}: R@1 rose in {int(verdict == 'Yes')} and fell in 0 of 1")
    star = " *" if verdict == "Yes" else ""
    assert told.table.to_numpy().tolist() == [["new", f"0.0 → {row['after']:.1f}{star}"]]
    assert "No comparison found" in did_it_work(found.iloc[:0]).note


def test_rounds(tmp_path):
    assert round_finding(tmp_path) is None and round_finding(None) is None
    rounds = [
        {"round": number, "records": {"i2t": 3, "t2i": 4}, "metrics": {"i2t_R@1": 0.5 + number / 100, "t2i_R@1": 0.4}}
        for number in range(3)
    ]
    content = {"rounds": rounds, "split": "validation", "stopped": "after 2 rounds, as requested"}
    (tmp_path / "rounds.json").write_text(json.dumps(content))
    found = round_finding(tmp_path)
    assert found.table["I2T R@1"].tolist() == ["50.00", "51.00", "52.00"] and found.figure is not None
    assert "validation" in found.note


def test_error_shares_are_those_of_the_papers_kind():
    records = pd.DataFrame(
        {
            "direction": ["i2t", "i2t", "t2i", "t2i"],
            "error_types": [["Object", "Count"], ["Object"], ["Action"], ["Action", "Object"]],
        }
    )
    shares = error_shares(records).set_index("error")
    assert shares.loc["Object"].to_dict() == {"t2i": 0.5, "i2t": 1.0} and shares.loc["Hallucination", "i2t"] == 0
    assert shares.loc[DENSITY].to_dict() == {"t2i": 1.5, "i2t": 1.5}
    assert np.isnan(error_shares(records[records["direction"] == "i2t"]).set_index("error").loc["Object", "t2i"])


def test_where_failures_are_lost():
    rows = [
        {"reason": "gt_invalid", "fp_reason": "so", "edit_instruction": None},
        {"reason": "llm_unparsed", "fp_reason": None, "edit_instruction": None},
        {"reason": "llm_refused", "fp_reason": "so", "edit_instruction": None},
        {"reason": "no_op", "fp_reason": "so", "edit_instruction": "No change."},
    ]
    assert lost_at(pd.DataFrame(rows)).tolist() == ["audit", "audit", "instruct", "edit"]
