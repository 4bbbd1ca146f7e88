"""The card of records: complete, no text read as Markdown or HTML, no key, and gaps in the data are stated."""

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

from repair_hf.hub import record_card
from repair_hf.hub.record_card import dataset_card
from repair_hf.hub.rendering import StageFolder
from repair_hf.records.columns import REASONS
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records
from repair_hf.runtime.redaction import use_keys


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
    assert json.loads(files["versions.json"])["packages"] == {"torch": "2"}
    assert not any(hidden in text for text in files.values() for hidden in ("/home/ann", "inside.example"))
    assert StageFolder.of(synthesis / "records").files() == {}


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
    assert card.count("**t2i**") == 2 and card.count("**i2t**") == 1
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
