"""The card of records: complete, no text is read as Markdown or HTML, no key, and gaps in the data are stated."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path

import yaml
from datasets import Dataset
from huggingface_hub import DatasetCard
from PIL import Image

from repair_hf.analysis.tables import markdown
from repair_hf.hub import record_card
from repair_hf.hub.model_card import model_card
from repair_hf.hub.record_card import dataset_card
from repair_hf.hub.rendering import StageFolder, code, without_folders
from repair_hf.records.columns import REASONS
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, load_dropped, load_records, save_records
from repair_hf.runtime.redaction import printable, use_keys


def card_of(folder: Path, records: Dataset, dropped: Dataset, **more):
    return dataset_card(folder, folder, "me/x-repair", records, dropped, **more)


def test_the_dataset_card_tells_it_all(synthesis, hostile, dropped):
    card = card_of(synthesis, hostile, dropped, license="cc-by-4.0")[0]
    data = DatasetCard(card).data.to_dict()
    assert data["license"] == "cc-by-4.0" and data["size_categories"] == ["n<1K"]
    assert [config["config_name"] for config in data["configs"]] == ["records", "dropped"]
    for text in (
        'load_dataset("me/x-repair", "records", split="train")',
        "| failures | 4 | 5 |",
        "| became records | 3 | 3 |",
        f"| dropped as `no_op`: {REASONS['no_op']} | 1 | 1 |",
        "| version that answered | `gemini-2.5-flash-002` | 1 answers |",
        "$1.50 for 1,234 answers",
        "License, as stated by the publisher of this dataset: `cc-by-4.0`.",
        "`…/photos`, split `train`, fingerprint `abc`",
        "@misc{liu-repair",
    ):
        assert text in card, text
    for hidden in ("/home/ann", "inside.example", "concurrency"):
        assert hidden not in card


def test_the_files_beside_a_card_tell_nothing_about_the_machine(synthesis):
    files = {name: content.decode() for name, content in StageFolder.of(synthesis).files().items()}
    options = yaml.safe_load(files["config.yaml"])
    assert options["pairs"] == "…/photos" and options["concurrency"] == 7
    assert json.loads(files["summary.json"])["paid"][0]["calls"] == 1234
    assert json.loads(files["versions.json"]) == {
        "command": "synthesize",
        "python": "3.11",
        "packages": {"torch": "2"},
    }
    assert not any(hidden in text for text in files.values() for hidden in ("/home/ann", "inside.example"))
    assert StageFolder.of(synthesis / "records").files() == {}


def test_the_cards_of_a_real_run_have_no_gap(repaired_world):
    folder, model = repaired_world / "records", repaired_world / "repaired"
    records = card_of(folder, load_records(folder), load_dropped(folder))[0]
    trained = model_card(model, "me/clip-repair", results=repaired_world / "evaluate")
    for card in (records, trained):
        assert "unknown" not in card and "None" not in card and str(repaired_world) not in card
    assert "- against `plain` (2 steps without records): I2T R@1 " in trained and "contrast" in trained
    versions = json.loads(StageFolder.of(folder).files()["versions.json"])
    assert set(versions) == {"command", "python", "commit", "packages"}


def test_a_strangers_text_stays_text_in_the_whole_card(synthesis, hostile, dropped, rendered):
    card, _ = card_of(synthesis, hostile, dropped)
    page = rendered(card.split("---\n", 2)[2])
    known = "a blockquote code details em h1 h2 h3 img li p pre strong summary table tbody td th thead tr ul".split()
    assert set(re.findall(r"<(\w+)", page)) <= set(known)
    assert all(name.startswith("samples/") for name in re.findall(r'<img src="([^"]*)"', page))
    assert not re.findall(r"<a [^>]*>", page) and "onerror" not in re.sub(r"<code>.*?</code>", "", page)
    assert "49" not in re.findall(r"<code>\{\{ (.*?) \}\}", page)
    (first,) = {"0<script>alert(1)</script> a dog"} & set(hostile["record_id"])
    assert f"<code>{html.escape(first)}</code>" in page  # ids are a stranger's texts, too


def test_the_samples_are_of_both_directions_and_small(synthesis, hostile, dropped):
    card, pictures = card_of(synthesis, hostile, dropped)
    assert card.count("| query | ground truth | false positive | edit |") == 3
    assert card.count("**T2I**") == 2 and card.count("**I2T**") == 1
    assert set(pictures) == {"samples/1-edit.png", "samples/3-edit.png"}  # the fixture has no other images
    assert all(f"]({name})" in card for name in pictures)
    assert card_of(synthesis, hostile, dropped) == (card, pictures)  # equal folders give equal cards


def test_a_sample_picture_tells_nothing_but_itself():
    large = Image.new("RGB", (800, 400), "red")
    large.info |= {"exif": b"Exif\0\0 where it was taken", "icc_profile": b"by whom it was taken"}
    small = Image.open(io.BytesIO(record_card._picture(large)))
    assert small.size == (256, 128) and not small.info


def test_records_of_unknown_making_say_so(hostile, tmp_path):
    none = Dataset.from_dict({name: [] for name in DROPPED_FEATURES}, features=DROPPED_FEATURES)
    unknown = {"prompt_digest": "of old", "error_types": [], "edit_similarity": None}
    bare = hostile.map(lambda row: unknown, features=FEATURES)
    save_records(tmp_path / "bare", bare, none)
    card = card_of(tmp_path / "bare", bare, none)[0]
    for text in (
        "What it cost is unknown",
        "stated no license",
        "Image-caption pairs: unknown.",
        "there is no config `dropped`",
    ):
        assert text in card, text
    assert "license" not in DatasetCard(card).data.to_dict()


def test_no_key_is_in_a_card(synthesis, hostile, dropped, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "a-very-secret-value")
    use_keys(["GEMINI_API_KEY"])
    monkeypatch.setenv("HF_TOKEN", "another-secret-value")
    notes = {"domain_notes": "a-very-secret-value", "pairs": "http://ann:pass@host/x"}
    (synthesis / "config.yaml").write_text(yaml.safe_dump(notes))
    leak = {"edit_instruction": "use hf_abcdefghijklmnopqrstuv and another-secret-value"}
    leaking = hostile.map(lambda row: leak, features=FEATURES)
    card = card_of(synthesis, leaking, dropped)[0] + StageFolder.of(synthesis).files()["config.yaml"].decode()
    for secret in ("a-very-secret-value", "another-secret-value", "hf_abcdefghijklmnopqrstuv", "ann:pass"):
        assert secret not in card
    assert "<hidden>" in card


def test_a_code_span_shows_the_text_and_does_nothing(hostile_text, rendered):
    text = hostile_text
    page = rendered(markdown(("head",), [(code(text),)], labels=1))
    assert re.findall(r"<(\w+)", page) == ["table", "thead", "tr", "th", "tbody", "tr", "td", "code"]
    if text.isascii() and text.isprintable() and "  " not in text:
        shown = html.unescape(re.search(r"<code>(.*)</code>", page)[1])
        assert shown == text
    assert not re.search("[\u202e\u200b\x07]", page)


def test_spaces_and_joiners_of_other_scripts_are_shown_and_what_turns_text_around_is_not():
    assert printable("10\u00a0kg\u3000\u200d") == "10\u00a0kg\u3000\u200d"
    assert printable("a\u202eb\n") == r"a\u202eb\n"


def test_a_head_with_a_bar_stays_one_cell(rendered):
    page = rendered(markdown(("", code("a|b")), [("x", 1)]))
    assert re.findall(r"<code>(.*?)</code>", page) == ["a|b"] and page.count("<td") == 2


def test_cells_without_a_value_are_dashes_and_heads_are_not():
    assert markdown(("", "n"), [(None, 1234), ("a", 0.5)]) == "|  | n |\n| --- | ---: |\n| – | 1,234 |\n| a | 0.500 |"
    assert code(None) == code("") == code(" \n") == "–"


def test_of_a_path_the_last_part_is_shown():
    assert without_folders("/home/ann/secret/photos") == "…/photos"
    assert without_folders({"a": [{"b": "/x/y"}, 1]}) == {"a": [{"b": "…/y"}, 1]}
    assert without_folders("runs/photos") == "runs/photos" and without_folders(3) == 3
