"""What the report says about a run: whether repair helped, where failures were lost, which errors they had."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset

from repair_hf.analysis.run_data import RunData
from repair_hf.analysis.run_findings import DENSITY, error_finding, funnel, lost_at, repair_findings

NOTHING = RunData("run", None, (), Dataset.from_dict({}), pd.DataFrame(), pd.DataFrame())


def evaluated(folder: Path, shares: dict[str, float], *gains: tuple[str, str, float, float]) -> None:
    """Write what `repair-hf evaluate` leaves: R@1 by model, and a model, its baseline and the bounds of their gain."""
    metrics = {name: {"t2i_R@1": share, "intervals": {"t2i_R@1": [share, share]}} for name, share in shares.items()}
    for name in shares if len(shares) > 1 else ("",):
        (folder / name).mkdir(parents=True)
        (folder / name / "ranks.parquet").touch()
        (folder / name / "metrics.json").write_text(json.dumps(metrics.get(name) or metrics[next(iter(shares))]))
    if len(shares) > 1:
        compared = [
            {
                "model": model,
                "reference": plain,
                "differences": {"t2i_R@1": {"difference": (low + high) / 2, "low": low, "high": high}},
                "queries": {"t2i": {"repaired": 3, "broken": 1}},
            }
            for model, plain, low, high in gains
        ]
        (folder / "metrics.json").write_text(json.dumps(metrics))
        (folder / "differences.json").write_text(json.dumps({"repair": compared}))


SHARES = {"base": 0.0, "plain": 0.4, "repaired": 0.5}


@pytest.mark.parametrize(
    "bounds, verdict, cell",
    [
        ((0.05, 0.15), "Yes", "+10.0 [+5.0, +15.0] *"),
        ((-0.02, 0.06), "Not shown", "+2.0 [-2.0, +6.0]"),
        ((-0.3, -0.1), "No", "-20.0 [-30.0, -10.0] *"),
    ],
)
def test_repair_helped_if_it_beats_plain_training(tmp_path, bounds, verdict, cell):
    """Both models gain a lot over the base, which answers nothing."""
    evaluated(tmp_path / "evaluate", SHARES, ("repaired", "plain", *bounds))
    found, ranks = repair_findings(tmp_path)
    assert found.note.startswith(f"{verdict}: ")
    levels = [[name, f"{100 * share:.1f}"] for name, share in SHARES.items()]
    assert [[text.strip() for text in row] for row in found.rows[1]] == [*levels, ["repaired − plain", cell]]
    assert found.data[["comparison", "metric", "low", "high"]].to_numpy().tolist() == [
        ["repaired − plain", "t2i_R@1", *bounds]
    ]
    assert ranks.rows[1] == [["repaired − plain", "t2i", "3", "1"]]


def test_some_better_and_some_worse_is_partly(tmp_path):
    gains = ("repaired", "plain", 0.1, 0.2), ("repaired", "longer", -0.2, -0.1)
    evaluated(tmp_path, SHARES | {"longer": 0.7}, *gains)
    assert repair_findings(tmp_path)[0].note.startswith("Partly: better in 1 and worse in 1 of 2")


def test_without_a_plain_model_nobody_knows(tmp_path):
    assert repair_findings(None)[0].note.startswith("Not measured")
    evaluated(tmp_path / "base", {"base": 0.25})
    evaluated(tmp_path / "evaluate", {"base": 0.25, "repaired": 0.5})
    path = tmp_path / "evaluate" / "differences.json"
    path.write_text(json.dumps({"repair": [{"model": "repaired", "reference": None}]}))
    (found,) = repair_findings(tmp_path)
    assert found.note.startswith("Not known") and "without `--records`" in found.note
    assert found.table["T2I R@1"].tolist() == ["25.0", "50.0", "25.0"]


def test_contrast_sets_have_a_table_of_their_own(tmp_path):
    evaluated(tmp_path, SHARES, ("repaired", "plain", 0.1, 0.2))
    for name, each in (metrics := json.loads((tmp_path / "metrics.json").read_text())).items():
        if name != "base":
            each |= {"contrast_caption": SHARES[name]}
            each["intervals"]["contrast_caption"] = [0, 1]
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    _, found, _ = repair_findings(tmp_path)
    assert found.rows == (["model", "contrast caption"], [["plain", "40.0"], ["repaired", "50.0"]])


def test_evaluations_of_two_splits_below_one_root_are_told_apart(tmp_path):
    """They have models of the same names."""
    for split in ("validation", "test"):
        evaluated(tmp_path / split, SHARES, ("repaired", "plain", 0.1, 0.2))
    found = repair_findings(tmp_path)[0]
    assert found.table["model"].tolist() == [
        *(f"{split}--{name}" for split in ("test", "validation") for name in SHARES),
        *(f"{split}--repaired − {split}--plain" for split in ("test", "validation")),
    ]


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


def test_error_shares_are_those_of_edited_captions():
    rows = {"direction": ["i2t", "i2t", "t2i"], "error_types": [["Object", "Count"], ["Object"], []]}
    found = error_finding(replace(NOTHING, kept=pd.DataFrame(rows)))
    assert found.data.set_index("error")["i2t"].to_dict() == {
        "Object": 1.0, "Count": 0.5, "Action": 0, "Attribute": 0, "Relation": 0, "Hallucination": 0, DENSITY: 1.5
    }  # fmt: skip
    assert found.rows[1][0] == ["Object", "100.0%"] and "2 edited captions" in found.note
