"""Records of RePair's variants: rounds, mirrored failures, shares, and cost."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from datasets import Dataset

from repair_hf.runtime.options import PairsOptions
from repair_hf.study import repair_records
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.repair_records import (
    RepairRecords,
    calls_per_record,
    cost_of,
    has_edit,
    mirror_failures,
    share_of_records,
    shares_answers,
)
from repair_hf.study.setting import Knobs
from repair_hf.synthesis.options import EditorOptions, LLMOptions

METHODS = load_methods()


@pytest.mark.parametrize(
    "name, shares",
    [("repair", True), ("wo-qc", True), ("weak-editor", True), ("weak-llm", False), ("other-backbone", False)],
)
def test_variants_that_ask_alike_share_answers(name, shares):
    """The toy world's weak LLM gets the same requests as the oracle, but must not reuse its answers."""
    llms = {"weak-llm": "weak"}
    setting = SimpleNamespace(llm="strong", llm_of=lambda variant: llms.get(variant.swap, "strong"))
    assert shares_answers(METHODS[name], setting) == shares


def test_later_rounds_belong_to_the_hyperparameters_of_the_retriever_between(monkeypatch, tmp_path):
    """With other hyperparameters the second round is mined and repaired anew; the first stays."""
    typed = []
    setting = SimpleNamespace(
        pairs_options=PairsOptions("x"), model_of=lambda variant: "m", mine={}, training={},
        llm=LLMOptions("o"), llm_of=lambda variant: LLMOptions("o"), swaps=(),
        editor_of=lambda variant: EditorOptions("world"),
        type_command=lambda *words: typed.append(words), has_records=lambda variant: False, records=(),
    )  # fmt: skip
    monkeypatch.setattr(repair_records, "load_records", lambda folders: None)
    records = RepairRecords(setting, tmp_path)
    variant = METHODS["repair-2-rounds"]
    one, other = (records.make_rounds(variant, Knobs(rate, 1.0, 1.0))[1] for rate in (1e-4, 3e-4))
    assert one[0] == other[0] and one[1] != other[1]
    outputs = [words[words.index("--output") + 1] for words in typed]
    assert len(set(outputs)) == 8 and len(outputs) == 10  # five commands each, of which the first two are the same


def test_mirrored_failures(tmp_path):
    """Caption 7 chose image 1: seen from image 1, caption 7 is a false positive beside image 1's own ground truth."""
    names = ("direction", "q", "gt", "fp", "q_id", "gt_id", "fp_id", "gt_score", "gt_rank")
    rows = [
        ("i2t", 1, 3, 9, "i1", "c3", "c9", 0.4, 2),
        ("i2t", 1, 3, 8, "i1", "c3", "c8", 0.4, 2),
        ("t2i", 7, 2, 1, "c7", "i2", "i1", 0.3, 4),
        ("t2i", 8, 2, 1, "c8", "i2", "i1", 0.3, 4),
        ("t2i", 5, 2, 6, "c5", "i2", "i6", 0.3, 4),
    ]
    pd.DataFrame(rows, columns=names).assign(fp_score=0.5, fp_rank=1).to_parquet(tmp_path / "failures.parquet")
    table = pd.read_parquet(mirror_failures(tmp_path))
    assert set(table["direction"]) == {"i2t"}
    assert sorted(zip(table["q_id"], table["fp_id"], strict=True)) == [("i1", "c7"), ("i1", "c8"), ("i1", "c9")]
    mirrored = table[table["fp_id"] == "c7"].iloc[0]
    assert (mirrored["q"], mirrored["fp"], mirrored["gt_id"], mirrored["gt_rank"]) == (1, 7, "c3", 2)


I2T = {"direction": "i2t", "candidate_similarities": [0.1, None, 0.2]}
T2I = {"direction": "t2i", "candidate_similarities": [0.1, 0.2, 0.3]}
POINTER = {"direction": "t2i", "candidate_similarities": None}  # without an edit: it cost nothing


@pytest.mark.parametrize(
    "rows, is_audited, calls",
    [
        ([I2T], True, (5, 0)),
        ([T2I], True, (2, 3)),
        ([I2T, T2I, POINTER], True, (3.5, 1.5)),
        ([I2T], False, (4, 0)),
    ],
)
def test_calls_per_record_are_the_papers(rows, is_audited, calls):
    assert calls_per_record(Dataset.from_list(rows), is_audited=is_audited) == calls


def test_a_share_of_records_keeps_what_points_at_them():
    """Captions 0 to 9 chose images 0 to 9; each pair has a record, and a pointer from the other side."""
    names = ("record_id", "q_id", "fp_id", "candidate_similarities")
    own = [dict(zip(names, (f"r{i}", f"i{i}", f"c{i}", [0.5]), strict=True)) for i in range(10)]
    pointers = [dict(zip(names, (f"p{i}", f"c{i}", f"i{i}", None), strict=True)) for i in range(10)]
    kept = share_of_records(Dataset.from_list([*own, *pointers]), 0.4)["record_id"][:]
    numbers = [{name[1:] for name in kept if name[0] == kind} for kind in "rp"]
    assert len(kept) == 8 and numbers[0] == numbers[1] and len(numbers[0]) == 4
    assert share_of_records(Dataset.from_list(own), 0.4)["record_id"][:] == kept[:4]
    assert has_edit(Dataset.from_list([*own, *pointers])).tolist() == [True] * 10 + [False] * 10


def test_failures_of_the_direction_that_is_not_repaired_become_records_without_an_edit(monkeypatch, tmp_path):
    """And stay with every share of the records, unless they mirror one that is left out."""
    typed, row = [], {"gt_id": "g", "fp_score": 0.5}
    ranked = dict.fromkeys(("q", "gt", "fp", "fp_rank", "gt_rank", "gt_score"), 0)
    setting = SimpleNamespace(
        pairs_options=PairsOptions("x"), model_of=lambda variant: "m", mine={"d_i2t": 5, "d_t2i": 1}, training={},
        llm=LLMOptions("o"), llm_of=lambda variant: LLMOptions("o"), swaps=(),
        editor_of=lambda variant: EditorOptions("world"),
        type_command=lambda *words: typed.append(words), has_records=lambda variant: False, records=(),
    )  # fmt: skip
    own = [row | {"record_id": f"r{k}", "direction": "i2t", "q_id": f"i{k}", "fp_id": f"c{k}"} for k in range(4)]
    made = Dataset.from_list([one | {"error_types": ["x"], "candidate_similarities": [0.5]} for one in own])
    monkeypatch.setattr(repair_records, "load_records", lambda folders: made)
    mined = [row | ranked | {"direction": "t2i", "q_id": f"c{k}", "fp_id": f"i{k}"} for k in range(2, 6)]
    (tmp_path / "repair-i2t-t2i-failures").mkdir()
    pd.DataFrame(mined).to_parquet(tmp_path / "repair-i2t-t2i-failures" / "failures.parquet")
    records = RepairRecords(setting, tmp_path).make_rounds(METHODS["repair-i2t"], Knobs(1e-4, 1.0, 1.0))[0]
    assert records["direction"][:] == ["i2t"] * 4 + ["t2i"] * 4 and len(set(records["record_id"][:])) == 8
    assert has_edit(records).tolist() == [True] * 4 + [False] * 4
    assert [words[0] for words in typed] == ["mine", "synthesize", "mine"]  # the failures alone are made
    assert typed[2][typed[2].index("--d-i2t") + 1] == "0"
    some = share_of_records(records, 0.5)
    left = {name for name in some["q_id"][:] if name.startswith("c")}
    kept = {name[1:] for name in some["q_id"][:] if name.startswith("i")}
    assert len(kept) == 2 and left == {f"c{k}" for k in (2, 3, 4, 5) if k > 3 or str(k) in kept}


def test_records_cost_what_they_asked_for_and_not_what_they_inherited(tmp_path):
    """Some of the answers and images were paid by another product."""
    use = {"calls": 3, "replayed": 1, "unpriced": 0, "dollars": 0.25, "dollars_saved": 0.125, "stage": "audit"}
    asked = [use | {"direction": "i2t"}, use | {"direction": "t2i", "calls": 7}]
    bought = use | {"stage": "edit", "direction": "t2i", "calls": 2, "dollars": 2.0}
    paid = [use | {"direction": "i2t", "dollars": 40.0}, bought]  # includes inherited answers
    summary = {"llm": asked, "paid": paid, "images": {"made": 5, "found": 1, "dollars": 6.0}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert cost_of([tmp_path], {}) == (12, 6, 0.75 + 6.0)
    assert cost_of([tmp_path], {"i2t": 0.0, "t2i": 0.5}) == (4, 3, 0.1875 + 3.0)
    assert cost_of([tmp_path, Path("me/records")], {}) == (None, None, None)  # one is on the Hub
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"paid": [bought | {"unpriced": 1}]}))
    assert cost_of([tmp_path], {})[2] is None
