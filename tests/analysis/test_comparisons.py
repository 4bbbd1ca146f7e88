"""What the report says about a run: whether repair helped, where failures were lost, which errors they had."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset

from repair_hf.analysis.comparisons import find_evaluations, repair_findings
from repair_hf.analysis.errors import DENSITY, error_finding, error_shares
from repair_hf.analysis.funnel import funnel, lost_at
from repair_hf.analysis.run_data import RunData
from repair_hf.evaluation.judging import save_cases
from repair_hf.evaluation.ranks import save_ranks

NOTHING = RunData("run", None, (), Dataset.from_dict({}), pd.DataFrame(), pd.DataFrame())


def evaluated(folder: Path, rank: list[int], *, records: str | None = "", seed: int = 0, pairs: str = "test") -> None:
    """Write an evaluation of captions, and the training of its model: plain if `records` is None, none if empty."""
    folder.mkdir(parents=True)
    ids, score = [f"{pairs}{row}" for row in range(len(rank))], np.full(len(rank), 0.5, np.float32)
    columns = {"model": ["m"] * len(rank), "direction": ["t2i"] * len(rank), "q_id": ids, "gt_id": ids}
    columns |= {"gt_score": score, "gt_rank": rank, "fp_id": ids, "fp_score": score, "top1_id": ids}
    save_ranks(pa.table(columns), folder)
    share = float(np.mean(np.array(rank) == 1))
    metrics = {"model": "base", "pairs_fingerprint": pairs, "t2i_R@1": share, "intervals": {"t2i_R@1": [share, share]}}
    if records != "":
        trained = folder.parent.parent / "train" / folder.name
        trained.mkdir(parents=True, exist_ok=True)
        (trained / "config.yaml").write_text(json.dumps({"model": "base", "records": records, "seed": seed}))
        (trained / "versions.json").write_text(json.dumps({"command": "train"}))
        metrics["model"] = str(trained)
    (folder / "metrics.json").write_text(json.dumps(metrics))


def near_misses(folder: Path, correct: list[bool]) -> None:
    names = {"model": "m", "benchmark": "near_misses_t2i", "measure": "truth", "group": "all"}
    columns = {name: [value] * len(correct) for name, value in names.items()}
    ids = [str(row) for row in range(len(correct))]
    save_cases(
        pa.table(columns | {"case_id": ids, "picture_id": ids, "margin": [0.1] * len(correct), "correct": correct}),
        folder,
    )
    metrics = json.loads((folder / "metrics.json").read_text())
    share = float(np.mean(correct))
    metrics |= {"near_misses_t2i_truth": share}
    metrics["intervals"]["near_misses_t2i_truth"] = [share, share]
    (folder / "metrics.json").write_text(json.dumps(metrics))


@pytest.mark.parametrize(
    "repaired, verdict, star", [([1] * 9, "Yes", " *"), ([1] * 5 + [2] * 4, "Not shown", ""), ([2] * 9, "No", " *")]
)
def test_repair_helped_if_it_beats_plain_training(tmp_path, repaired, verdict, star):
    """Both gain a lot over the base. One query of nine may as well be chance: its interval holds 0."""
    evaluated(tmp_path / "evaluate" / "base", [2] * 9)
    evaluated(tmp_path / "evaluate" / "plain", [1] * 4 + [2] * 5, records=None)
    evaluated(tmp_path / "evaluate" / "repaired", repaired, records="records")
    found, ranks = repair_findings(tmp_path)
    assert found.note.startswith(f"{verdict}: ")
    gain = 100 * (np.mean(np.array(repaired) == 1) - 4 / 9)
    (row,) = found.data.to_dict("records")
    assert row["comparison"] == "repaired − plain" and row["low"] <= row["difference"] <= row["high"]
    assert 100 * row["difference"] == pytest.approx(gain)
    cells = found.table.set_index("model")["T2I R@1"]
    assert cells["base"].startswith("0.0 [") and cells["repaired − plain"].startswith(f"{gain:+.1f} [")
    assert cells["repaired − plain"].endswith("]" + star)
    changes = ranks.table.set_index("direction").loc["t2i"]
    assert changes["repaired"] == sum(np.array(repaired[4:]) == 1) and changes["broken"] == sum(
        np.array(repaired[:4]) > 1
    )


def test_without_a_plain_model_nobody_knows(tmp_path):
    assert repair_findings(None)[0].note.startswith("Not measured")
    evaluated(tmp_path / "evaluate" / "base", [2] * 9)
    evaluated(tmp_path / "evaluate" / "repaired", [1] * 9, records="records")
    (found,) = repair_findings(tmp_path)
    assert found.note.startswith("Not known") and "without `--records`" in found.note
    assert found.table["model"].tolist() == ["base", "repaired"]


def test_near_misses_are_compared_where_they_were_measured(tmp_path):
    for name, records, right in (("plain", None, [False] * 8), ("repaired", "records", [True] * 8)):
        evaluated(tmp_path / "evaluate" / name, [1, 2], records=records)
        near_misses(tmp_path / "evaluate" / name, right)
    found = repair_findings(tmp_path)[0]
    cells = found.table.set_index("model")["near misses T2I truth"]
    assert cells.tolist() == ["0.0 [0.0, 0.0]", "100.0 [100.0, 100.0]", "+100.0 [+100.0, +100.0] *"]


def test_a_repaired_model_is_compared_with_the_plain_ones_of_its_seed_on_the_same_pairs(tmp_path):
    """Validation and test lie below one root, under the same names."""
    for pairs in ("validation", "test"):
        for seed in (0, 1):
            for name, records in (("plain", None), ("repaired", "records")):
                evaluated(tmp_path / pairs / f"{name}-{seed}", [1, 2], records=records, seed=seed, pairs=pairs)
    assert [len(group) for group in find_evaluations(tmp_path)] == [4, 4]
    compared = repair_findings(tmp_path)[0].data["comparison"].tolist()
    assert sorted(compared) == [
        f"{pairs}--repaired-{seed} − {pairs}--plain-{seed}" for pairs in ("test", "validation") for seed in (0, 1)
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


def test_error_shares_are_those_of_the_papers_kind():
    rows = {
        "direction": ["i2t", "i2t", "t2i", "t2i"],
        "record_id": list("abcd"),
        "error_types": [["Object", "Count"], ["Object"], ["Action"], ["Action", "Object"]],
    }
    records = pd.DataFrame(rows)
    shares = error_shares(records).set_index("error")
    assert shares.loc["Object"].to_dict() == {"t2i": 0.5, "i2t": 1.0} and shares.loc["Hallucination", "i2t"] == 0
    assert shares.loc[DENSITY].to_dict() == {"t2i": 1.5, "i2t": 1.5}
    found = error_finding(replace(NOTHING, kept=records))  # nobody has labelled the images
    assert "0 of 2 t2i, 2 of 2 i2t" in found.note
    assert found.table.set_index("error").loc["Object"].tolist() == ["–", "100.0%"]
