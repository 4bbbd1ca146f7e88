"""What was paid once, and what the ceilings leave."""

from pathlib import Path

from repair_hf.llm.journal import Entry, Journal
from repair_hf.study.multi_dataset import ceilings
from repair_hf.study.spending import limit_spending, paid, products_in
from repair_hf.synthesis.models import LLMOptions
from repair_hf.synthesis.reuse import inherit


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


def test_a_folder_may_spend_what_the_others_have_left(tmp_path, monkeypatch):
    write_journal(tmp_path / "one" / "journal.jsonl", "abc")
    write_journal(tmp_path / "two" / "journal.jsonl", "d")
    left = limit_spending(LLMOptions(llm="m", max_usd=2.25, max_calls=10), products_in(tmp_path), [tmp_path / "two"])
    assert (left.max_usd, left.max_calls) == (0.75, 7)  # including its own 0.5 and 1
    monkeypatch.setattr("repair_hf.study.spending.paid", None)  # without a ceiling nothing is read
    assert limit_spending(LLMOptions(llm="m"), products_in(tmp_path)) == LLMOptions(llm="m")


def test_a_variant_starts_from_the_answers_and_images_of_repair(tmp_path):
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


def test_answers_are_inherited_from_where_they_were_paid(tmp_path):
    """A third product takes from each of two what it has paid, no copy of a copy; makers of texts take no images."""
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
    (tmp_path / ".four.tmp").mkdir()  # another process is copying into it
    assert sorted(path.name for path in products_in(tmp_path)) == ["one", "three", "two"]
    inherit(sources, tmp_path / "four", images=False)
    assert paid([tmp_path / "four"])[1] == 3 and not (tmp_path / "four" / "candidates").exists()
