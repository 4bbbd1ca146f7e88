"""What was paid once, and what the ceilings leave."""

import json
from pathlib import Path

import pytest

from repair_hf.llm.budget import BudgetSpent
from repair_hf.llm.journal import Entry, Journal
from repair_hf.study.multi_dataset import ceilings
from repair_hf.study.spending import Purse, paid, products_in
from repair_hf.study.work_sharing import WorkSharing
from repair_hf.synthesis.models import LLMOptions
from repair_hf.synthesis.reuse import inherit, inherited


def write_journal(path: Path, keys: str, dollars: float = 0.5, **stage: str) -> None:
    with Journal(path) as journal:
        for key in keys:
            about = {"stage": "audit", "direction": "i2t", "model": "m", "answered_by": "m"} | stage
            journal.put(Entry(key, "yes", "stop", 10, 2, dollars, **about))


def test_an_answer_that_two_products_hold_was_paid_once(tmp_path):
    write_journal(tmp_path / "one" / "journal.jsonl", "abc")
    write_journal(tmp_path / "two" / "journal-inherited-0.jsonl", "ab")
    write_journal(tmp_path / "two" / "journal.jsonl", "d")
    write_journal(tmp_path / "two" / "images.jsonl", "x", 2.0, stage="edit", direction="t2i")
    assert paid([tmp_path / "one", tmp_path / "two"]) == (4.0, 4)  # four answers, and an image, which is no answer
    assert paid([tmp_path / "two"]) == (3.5, 3) and paid([]) == (0.0, 0)
    write_journal(tmp_path / "three" / "journal.jsonl", "a")
    assert paid([tmp_path / name for name in ("one", "two", "three")]) == (4.5, 5)  # two have paid for this one


def test_a_ceiling_applies_to_all_datasets_together(tmp_path):
    write_journal(tmp_path / "one" / "products" / "laclip" / "journal.jsonl", "abc")
    others = [tmp_path / "one", tmp_path / "not-begun"]
    assert ceilings(LLMOptions(llm="m", max_usd=2.0, max_calls=10), others) == ["--max-usd", "0.5", "--max-calls", "7"]
    assert ceilings(LLMOptions(llm="m", max_usd=1.0), others) == ["--max-usd", "0.0"]
    assert ceilings(LLMOptions(llm="m"), others) == []


def given(llm: LLMOptions) -> tuple[float | None, int | None]:
    return llm.max_usd, llm.max_calls


def test_a_product_may_spend_half_of_what_is_left_and_then_all_of_it(tmp_path):
    """What another product may spend meanwhile is set aside, unless its process has died."""
    products, sharing = tmp_path / "products", WorkSharing(tmp_path / ".locks")
    write_journal(products / "one" / "journal.jsonl", "abc")
    write_journal(products / "two" / "journal.jsonl", "d")
    purse, llm, seen = Purse(products, sharing), LLMOptions(llm="m", max_usd=6.0, max_calls=24), []
    (tmp_path / ".locks").mkdir()
    (tmp_path / ".locks" / "paying--dead.json").write_text("[100.0, 100]")

    def make(limited: LLMOptions) -> None:  # 4.0 and 20 are left
        seen.append(given(limited))
        purse.spend(llm, products / "other", lambda other: seen.append(given(other)))
        if len(seen) < 4:
            write_journal(products / "two" / "images.jsonl", "x", 1.5, stage="edit", direction="t2i")
            raise BudgetSpent("spent")

    purse.spend(llm, products / "two", make)
    assert seen == [(2.5, 11), (1.0, 5), (4.5, 21), (0.0, 0)]  # its own 0.5 and 1 included
    assert not list((tmp_path / ".locks").glob("paying--*.json"))
    purse.spend(LLMOptions(llm="m"), products / "two", lambda free: seen.append(given(free)))
    assert seen[-1] == (None, None)


def test_nothing_is_left_when_all_is_spent_or_with_a_provider(tmp_path):
    purse = Purse(tmp_path, WorkSharing(tmp_path / ".locks"))
    (tmp_path / "one" / "batches").mkdir(parents=True)
    state = {"name": "b", "model": "m", "questions": {"k": ["audit", "i2t", 0.75, 9], "l": ["audit", "i2t", 0.5, 9]}}
    (tmp_path / "one" / "batches" / "b.json").write_text(json.dumps(state))
    llm, seen = LLMOptions(llm="m", max_usd=2.0, max_calls=10, batch=True), []

    def make(limited: LLMOptions) -> None:
        seen.append(given(limited))
        raise BudgetSpent("spent")

    for name, left in (("two", (0.75, 8)), ("one", (2.0, 10))):  # its own batches are the product's to count
        with pytest.raises(BudgetSpent):
            purse.spend(llm, tmp_path / name, make)
        assert seen.pop() == left and seen == []


def test_a_variant_starts_from_the_answers_and_images_of_repair(tmp_path):
    source, folder = tmp_path / "repair-records", tmp_path / "wo-qc-records"
    write_journal(source / "journal.jsonl", "ab")
    (source / "candidates" / "00").mkdir(parents=True)
    (source / "candidates" / "00" / "x.png").write_bytes(b"picture")
    assert not inherit([tmp_path / "not-begun"], folder) and not folder.exists()
    assert inherit([source], folder)
    assert paid([folder]) == paid([source]) and (folder / "candidates" / "00" / "x.png").read_bytes() == b"picture"
    write_journal(folder / "journal.jsonl", "c")
    write_journal(source / "journal-1.jsonl", "e")
    assert inherit([source], folder) and paid([folder])[1] == 4  # what the source has paid meanwhile, too
    (folder / "summary.json").write_text("{}")
    assert not inherit([source], folder) and paid([source])[1] == 3


def test_answers_are_inherited_from_where_they_were_paid(tmp_path):
    """A third product takes from each of two what it has paid, no copy of a copy; makers of texts take no images."""
    for name, keys in (("one", "ab"), ("two", "c")):
        write_journal(tmp_path / name / "journal.jsonl", keys)
        write_journal(tmp_path / name / "images.jsonl", keys, 2.0, stage="edit", direction="t2i")
        (tmp_path / name / "candidates").mkdir()
        (tmp_path / name / "candidates" / "same.png").write_bytes(b"picture")
    write_journal(tmp_path / "two" / "journal-inherited-0.jsonl", "ab")
    sources = [tmp_path / "one", tmp_path / "two"]
    inherit(sources, tmp_path / "three")
    copied = sorted(tmp_path.glob("three/journal*"))
    assert [len(path.read_text().splitlines()) for path in copied] == [2, 1]
    assert (tmp_path / "three" / "candidates" / "same.png").exists()
    assert inherited(tmp_path / "three", images=False) == (1.5, 3)
    assert inherited(tmp_path / "three", images=True) == (1.5 + 6.0, 3) and inherited(
        tmp_path / "one", images=True
    ) == (0, 0)
    (tmp_path / ".four.tmp").mkdir()  # another process is copying into it
    assert sorted(path.name for path in products_in(tmp_path)) == ["one", "three", "two"]
    inherit(sources, tmp_path / "four", images=False)
    assert paid([tmp_path / "four"])[1] == 3 and not (tmp_path / "four" / "candidates").exists()
