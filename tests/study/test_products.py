"""What variants take from RePair, what was paid once, and failures seen from the other side."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
from datasets import Dataset

from repair_hf.llm import prompts
from repair_hf.llm.journal import Entry, Journal
from repair_hf.runtime.options import PairsOptions
from repair_hf.study import variants
from repair_hf.study.across import ceilings
from repair_hf.study.methods.method import Baseline
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.products import (
    Products,
    asking_alike,
    calls_per_record,
    name_of_samples,
    paid,
    products_in,
    wording_digest,
)
from repair_hf.study.setting import Knobs
from repair_hf.study.variants import _sum_up, has_edit, mirror_failures, share_of_records, shares_answers
from repair_hf.synthesis.reuse import inherit
from repair_hf.synthesis.models import EditorOptions, LLMOptions

METHODS = load_methods()


def write_journal(path: Path, keys: str, dollars: float = 0.5, **told: str) -> None:
    with Journal(path) as journal:
        for key in keys:
            stage = {"stage": "audit", "direction": "i2t", "model": "m", "answered_by": "m"} | told
            journal.put(Entry(key, "yes", "stop", 10, 2, dollars, **stage))


def test_an_answer_that_two_products_hold_was_paid_once(tmp_path):
    write_journal(tmp_path / "one" / "journal.jsonl", "abc")
    write_journal(tmp_path / "two" / "journal-inherited-0.jsonl", "ab")
    write_journal(tmp_path / "two" / "journal.jsonl", "d")
    write_journal(tmp_path / "two" / "images.jsonl", "x", 2.0, stage="edit", direction="t2i")
    assert paid([tmp_path / "one", tmp_path / "two"]) == (4.0, 4)  # four answers, and an image that is none
    assert paid([tmp_path / "two"]) == (3.5, 3) and paid([]) == (0.0, 0)


def test_a_ceiling_holds_for_all_data_sets_together(tmp_path):
    write_journal(tmp_path / "one" / "products" / "laclip" / "journal.jsonl", "abc")
    others = [tmp_path / "one", tmp_path / "not-begun"]
    assert ceilings(LLMOptions(llm="m", max_usd=2.0, max_calls=10), others) == ["--max-usd", "0.5", "--max-calls", "7"]
    assert ceilings(LLMOptions(llm="m", max_usd=1.0), others) == ["--max-usd", "0.0"]
    assert ceilings(LLMOptions(llm="m"), others) == []


def test_a_folder_may_spend_what_the_others_have_left_and_without_a_ceiling_nothing_is_counted(tmp_path, monkeypatch):
    folder = tmp_path / "products"
    write_journal(folder / "one" / "journal.jsonl", "abc")
    write_journal(folder / "two" / "journal.jsonl", "d")
    products = Products(SimpleNamespace(output=tmp_path))
    left = products._within_ceilings(LLMOptions(llm="m", max_usd=2.25, max_calls=10), folder / "two")
    assert (left.max_usd, left.max_calls) == (0.75, 7)  # of which 0.5 and 1 are its own already
    monkeypatch.setattr("repair_hf.study.products.paid", None)  # a big study's answers take a minute to read
    llm = LLMOptions(llm="m")
    assert products._within_ceilings(llm, folder / "two") == llm and ceilings(llm, [tmp_path]) == []


def test_a_variant_begins_with_the_answers_and_images_of_repair(tmp_path):
    source, folder = tmp_path / "repair-records", tmp_path / "wo-qc-records"
    write_journal(source / "journal.jsonl", "ab")
    (source / "candidates" / "00").mkdir(parents=True)
    (source / "candidates" / "00" / "x.png").write_bytes(b"picture")
    assert not inherit([tmp_path / "not-begun"], folder) and not folder.exists()
    assert inherit([source], folder)
    assert paid([folder]) == paid([source]) and (folder / "candidates" / "00" / "x.png").read_bytes() == b"picture"
    write_journal(folder / "journal.jsonl", "c")
    assert not inherit([source], folder)  # begun: left alone
    assert paid([folder])[1] == 3 and paid([source])[1] == 2


def test_answers_come_from_where_they_were_paid(tmp_path):
    """A third product takes of two what each has paid, and no copy of a copy; the makers of texts take no images."""
    for name, keys in (("one", "ab"), ("two", "c")):
        write_journal(tmp_path / name / "journal.jsonl", keys)
        (tmp_path / name / "candidates").mkdir()
        (tmp_path / name / "candidates" / "same.png").write_bytes(b"picture")
    write_journal(tmp_path / "two" / "journal-inherited-0.jsonl", "ab")
    sources = [tmp_path / "one", tmp_path / "two"]
    inherit(sources, tmp_path / "three")
    copied = sorted(tmp_path.glob("three/journal*"))
    assert [len(path.read_text().splitlines()) for path in copied] == [2, 1]
    assert (tmp_path / "three" / "candidates" / "same.png").exists()
    (tmp_path / ".four.tmp").mkdir()  # into which another process is copying
    assert sorted(path.name for path in products_in(tmp_path)) == ["one", "three", "two"]
    inherit(sources, tmp_path / "four", images=False)
    assert paid([tmp_path / "four"])[1] == 3 and not (tmp_path / "four" / "candidates").exists()


def test_what_two_products_paid_each_for_itself_counts_twice(tmp_path):
    for name in ("one", "two"):
        write_journal(tmp_path / name / "journal.jsonl", "a")
    write_journal(tmp_path / "three" / "journal-inherited-0.jsonl", "a")
    assert paid([tmp_path / name for name in ("one", "two", "three")]) == (1.0, 2)


def test_makers_that_share_a_prompt_ask_alike():
    makers = {maker.name: maker for name in ("sugarcrepe", "laclip") for maker in METHODS[name].parts.values()}
    assert asking_alike(makers["sugarcrepe"]) == ["tripletclip"] and asking_alike(makers["laclip"]) == []


def test_a_weaker_llm_is_asked_anew():
    """The toy world's oracle is asked alike whether or not it errs, so its answers would be those of the right one."""
    assert shares_answers(METHODS["wo-qc"]) and shares_answers(METHODS["weak-editor"])
    assert shares_answers(METHODS["repair"]) and not shares_answers(METHODS["weak-llm"])
    assert not shares_answers(METHODS["other-backbone"])


def test_mirrored_failures(tmp_path):
    """Caption 7 took image 1 for its own: seen from image 1, caption 7 is a false positive, beside image 1's own ground truth."""
    common = {"fp_score": 0.5, "fp_rank": 1}
    rows = [
        {"direction": "i2t", "q": 1, "gt": 3, "fp": 9, "q_id": "i1", "gt_id": "c3", "fp_id": "c9", "gt_score": 0.4, "gt_rank": 2},
        {"direction": "i2t", "q": 1, "gt": 3, "fp": 8, "q_id": "i1", "gt_id": "c3", "fp_id": "c8", "gt_score": 0.4, "gt_rank": 2},
        {"direction": "t2i", "q": 7, "gt": 2, "fp": 1, "q_id": "c7", "gt_id": "i2", "fp_id": "i1", "gt_score": 0.3, "gt_rank": 4},
        {"direction": "t2i", "q": 8, "gt": 2, "fp": 1, "q_id": "c8", "gt_id": "i2", "fp_id": "i1", "gt_score": 0.3, "gt_rank": 4},
        {"direction": "t2i", "q": 5, "gt": 2, "fp": 6, "q_id": "c5", "gt_id": "i2", "fp_id": "i6", "gt_score": 0.3, "gt_rank": 4},
    ]  # fmt: skip
    pd.DataFrame([row | common for row in rows]).to_parquet(tmp_path / "failures.parquet")
    table = pd.read_parquet(mirror_failures(tmp_path))
    assert set(table["direction"]) == {"i2t"}
    assert sorted(zip(table["q_id"], table["fp_id"], strict=True)) == [("i1", "c7"), ("i1", "c8"), ("i1", "c9")]
    mirrored = table[table["fp_id"] == "c7"].iloc[0]
    assert (mirrored["q"], mirrored["fp"], mirrored["gt_id"], mirrored["gt_rank"]) == (1, 7, "c3", 2)


def test_calls_per_record_are_the_papers():
    rows = [{"direction": "i2t", "candidate_similarities": [0.1, None, 0.2]}] * 2
    rows += [{"direction": "t2i", "candidate_similarities": [0.1, 0.2, 0.3]}] * 2
    pointer = [{"direction": "t2i", "candidate_similarities": None}]  # without an edit: it cost nothing
    for some, audited, calls in (
        (rows[:2], True, (5, 0)),
        (rows[2:], True, (2, 3)),
        (rows + pointer, True, (3.5, 1.5)),
        (rows[:2], False, (4, 0)),
    ):
        assert calls_per_record(Dataset.from_list(some), is_audited=audited) == calls


def test_a_share_of_records_keeps_what_points_at_them():
    """Captions 0 to 9 were taken for images 0 to 9; of each pair a record, and a pointer from the other side."""
    own = [
        {"record_id": f"r{i}", "q_id": f"i{i}", "fp_id": f"c{i}", "candidate_similarities": [0.5]} for i in range(10)
    ]
    pointers = [
        {"record_id": f"p{i}", "q_id": f"c{i}", "fp_id": f"i{i}", "candidate_similarities": None} for i in range(10)
    ]
    kept = share_of_records(Dataset.from_list([*own, *pointers]), 0.4)["record_id"][:]
    numbers = [{name[1:] for name in kept if name[0] == kind} for kind in "rp"]
    assert len(kept) == 8 and numbers[0] == numbers[1] and len(numbers[0]) == 4
    assert share_of_records(Dataset.from_list(own), 0.4)["record_id"][:] == kept[:4]
    assert has_edit(Dataset.from_list([*own, *pointers])).tolist() == [True] * 10 + [False] * 10


def test_later_rounds_belong_to_the_hyperparameters_of_the_retriever_between(monkeypatch, tmp_path):
    """Chosen otherwise after all, the second round is mined and repaired anew; the first stays."""
    typed = []
    setting = SimpleNamespace(
        pairs_options=PairsOptions("x"), model="m", model_of=lambda variant: "m", mine={}, training={}, llm=LLMOptions("o"),
        editor=EditorOptions("world"), type_command=lambda *words: typed.append(words),
    )  # fmt: skip
    monkeypatch.setattr(variants, "load_records", lambda folders: folders)
    monkeypatch.setattr(variants, "_sum_up", lambda records, folders: folders)
    made = variants.Variants(setting, tmp_path, lambda llm, folder: llm)
    one, other = (made.records(METHODS["repair-2-rounds"], Knobs(rate, 1.0, 1.0)) for rate in (1e-4, 3e-4))
    assert one[0] == other[0] and one[1] != other[1]
    outputs = [words[words.index("--output") + 1] for words in typed]
    assert len(set(outputs)) == 8 and len(outputs) == 10  # five commands each, of which the first two are the same


def test_records_cost_what_they_asked_for_and_not_what_they_inherited(tmp_path):
    """Of six images that were asked for two were bought here, at a dollar each; of the answers some had been paid by another."""
    use = {"calls": 3, "replayed": 1, "unpriced": 0, "dollars": 0.25, "dollars_saved": 0.125, "stage": "audit"}
    asked = [use | {"direction": "i2t"}, use | {"direction": "t2i", "calls": 7}]
    bought = use | {"stage": "edit", "direction": "t2i", "calls": 2, "dollars": 2.0}
    paid = [use | {"direction": "i2t", "dollars": 40.0}, bought]  # with answers that were inherited, and not asked for
    told = {"llm": asked, "paid": paid, "images": {"made": 5, "found": 1}}
    (tmp_path / "summary.json").write_text(json.dumps(told))
    records = Dataset.from_dict({"direction": ["i2t", "t2i", "i2t"], "record_id": ["a", "b", "c"]})
    found = _sum_up(records, [tmp_path])
    assert (found.llm_calls, found.image_calls, found.dollars) == (12, 6, 0.75 + 6.0)
    (tmp_path / "summary.json").write_text(json.dumps(told | {"paid": [bought | {"unpriced": 1}]}))
    assert _sum_up(records, [tmp_path]).dollars is None


def test_samples_are_named_by_what_decides_them():
    options, summary = {"maker": "negclip", "llm": "world/oracle", "seed": 1}, {"samples": 3}
    name = name_of_samples(options, summary)
    same = [
        {"max_usd": 5.0},
        {"editor_offload": None, "artifacts": 0.0, "stop": []},
    ]  # a ceiling; options that are new, and off
    assert all(name_of_samples(options | more, summary) == name for more in same)
    other = [{"seed": 2}, {"artifacts": 0.5}]
    assert all(name_of_samples(options | more, summary) != name for more in other)
    assert name_of_samples(options, {"samples": 4}) != name


def test_samples_are_made_anew_when_the_words_change_that_ask_for_them(monkeypatch):
    baselines = [method for method in METHODS.values() if isinstance(method, Baseline)]
    makers = {maker.name: maker for method in baselines for maker in method.parts.values()}
    before = {name: wording_digest(maker) for name, maker in makers.items()}
    monkeypatch.setattr(prompts, "DRAW", "Paint:")
    after = {name: wording_digest(maker) for name, maker in makers.items()}
    assert {name for name in makers if before[name] != after[name]} == {"stablerep", "tripletclip", "alia", "coco-cf"}
    asked = [before[name] for name in ("laclip", "sugarcrepe", "alia", "coco-cf")]
    assert len(set(asked)) == len(asked)  # other prompts
