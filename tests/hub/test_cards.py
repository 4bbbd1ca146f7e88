"""Cards: every blank is filled, nothing of a stranger's text is read as Markdown or HTML, no key, and what was not measured is said so."""

from __future__ import annotations

import html
import io
import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from datasets import Dataset
from huggingface_hub import DatasetCard, ModelCard
from jinja2 import Environment, meta
from jinja2.exceptions import UndefinedError
from markdown_it import MarkdownIt
from PIL import Image

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.hub import model_card as of_models
from repair_hf.hub import record_card as of_records
from repair_hf.hub import rendering
from repair_hf.hub.markdown import code, fenced, table, without_folders
from repair_hf.hub.model_card import model_card
from repair_hf.hub.record_card import dataset_card
from repair_hf.hub.rendering import Stage, template
from repair_hf.llm.prompts import prompt_digest
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import digest, open_stage

HOSTILE = [
    "<script>alert(1)</script> a dog",
    '<img src=x onerror="alert(1)">',
    "a | b \\| c",
    "`</code><b>bold</b>` and ``more`` ```",
    "[click](javascript:alert(1)) ![x](http://evil.example/x.png)",
    "https://evil.example www.evil.example me@evil.example",
    "# heading\n\n- list\n\n---\n\n| a | b |\n|---|---|\n",
    "**bold** _it_ ~~gone~~ &lt;b&gt; $x$",
    "{{ 7 * 7 }} {% for x in y %}",
    "right\u202eleft \u200b hidden\x07",
    "```\n</details>\n```",
    "``",
]


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_code_span_shows_the_text_and_does_nothing(text):
    page = rendered(table(("head",), [(code(text),)], labels=1))
    assert re.findall(r"<(\w+)", page) == ["table", "thead", "tr", "th", "tbody", "tr", "td", "code"]
    if text.isascii() and text.isprintable() and "  " not in text:
        shown = html.unescape(re.search(r"<code>(.*)</code>", page)[1])
        assert shown == text
    assert not re.search("[\u202e\u200b\x07]", page)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_fence_cannot_be_ended_from_within(text):
    page = rendered(f"{fenced(text, 'yaml')}\n\nend")
    assert re.findall(r"<(\w+)", page) == ["pre", "code", "p"] and page.endswith("<p>end</p>\n")
    held = html.unescape(re.search(r"<code[^>]*>(.*)</code>", page, re.DOTALL)[1])
    assert held.rstrip("\n") == text.rstrip("\n") or not text.isascii()


def test_cells_without_a_value_are_dashes_and_heads_are_not():
    assert table(("", "n"), [(None, 1234), ("a", 0.5)]) == "|  | n |\n| --- | ---: |\n| – | 1,234 |\n| a | 0.500 |"
    assert code(None) == code("") == code(" \n") == "–"


def test_of_a_path_the_last_part_is_shown():
    assert without_folders("/home/ann/secret/photos") == "…/photos"
    assert without_folders("runs/photos") == "runs/photos" and without_folders(3) == 3


@pytest.fixture
def hostile(repaired) -> Dataset:
    texts = (
        "q_text",
        "gt_text",
        "fp_text",
        "edit_text",
        "gt_reason",
        "fp_reason",
        "edit_instruction",
        "q_id",
        "fp_id",
    )
    rows = repaired.to_list()[:3] + repaired.to_list()[-3:]
    for number, row in enumerate(rows):
        for place, name in enumerate(texts):
            if row[name] is not None or name in ("gt_reason", "fp_reason", "edit_instruction"):
                row[name] = HOSTILE[(number * 3 + place) % len(HOSTILE)]
        row |= {
            "llm": HOSTILE[0],
            "editor": HOSTILE[4],
            "retriever": HOSTILE[3],
            "edit_similarity": 0.5 + number / 100,
        }
        row |= {"prompt_digest": prompt_digest(), "error_types": ["Count"] if row["direction"] == "i2t" else []}
    return Dataset.from_list(rows, features=FEATURES)


@pytest.fixture
def dropped() -> Dataset:
    rows = [
        {"direction": way, "reason": reason}
        for way, reason in (("t2i", "no_op"), ("i2t", "gt_invalid"), ("i2t", "no_op"))
    ]
    return Dataset.from_list([dict.fromkeys(DROPPED_FEATURES) | row for row in rows], features=DROPPED_FEATURES)


def stage_folder(folder: Path, command: str, options: dict, summary: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "versions.json").write_text(
        json.dumps({"command": command, "python": "3.11", "commit": None, "packages": {"torch": "2"}})
    )
    (folder / "command.txt").write_text(
        f"repair-hf {command} --output /home/ann/runs/{command} --model=/home/ann/clip "
        "--llm-base-url http://inside.example --editor_base_url=http://inside.example/v1 --seed 3\n"
    )
    return folder


@pytest.fixture
def synthesis(hostile, dropped, tmp_path) -> Path:
    options = {
        "pairs": "/home/ann/photos",
        "split": "train",
        "strict": False,
        "llm": "gemini/gemini-2.5-flash",
        "drift": 0.25,
        "concurrency": 7,
    }
    options |= {
        "llm_base_url": "http://inside.example",
        "pairs_fingerprint": "abc",
        "output": "/home/ann/runs/records",
    }
    paid = {
        "stage": "audit",
        "direction": "i2t",
        "calls": 1234,
        "replayed": 0,
        "prompt_tokens": 5000,
        "completion_tokens": 50,
    }
    paid |= {"dollars": 1.5, "unpriced": 0, "dollars_saved": 0.0}
    folder = stage_folder(tmp_path / "records", "synthesize", options, {"paid": [paid]})
    entry = {
        "key": "k",
        "text": "t",
        "finish": "stop",
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "dollars": 0.0,
        "stage": "audit",
    }
    entry |= {"direction": "i2t", "model": "gemini/gemini-2.5-flash", "answered_by": "gemini-2.5-flash-002"}
    (folder / "journal.jsonl").write_text(json.dumps(entry) + "\n")
    save_records(folder, hostile, dropped)
    return folder


def card_of(folder: Path, records: Dataset, dropped: Dataset, **more):
    return dataset_card(folder, folder, "me/x-repair", records, dropped, **more)


def test_the_dataset_card_tells_it_all(synthesis, hostile, dropped):
    card = card_of(synthesis, hostile, dropped, license="cc-by-4.0").text
    data = DatasetCard(card).data.to_dict()
    assert data["license"] == "cc-by-4.0" and data["size_categories"] == ["n<1K"]
    assert [config["config_name"] for config in data["configs"]] == ["records", "dropped"]
    for told in (
        'load_dataset("me/x-repair", "records", split="train")',
        "| mined | false positives that were audited | 4 | 5 |",
        "| kept | became records | 3 (75.0%) | 3 (60.0%) |",
        "| `no_op` | no candidate changed anything, or the instruction found nothing to change | 1 (25.0%) | 1 (20.0%) |",
        "| known of | 0 of 3 | 3 of 3 |",
        "| Count | – | 100.0% |",
        "| t2i | 3 | 0.500 | 0.505 | 0.510 | 0.515 | 0.510 |",
        "`gemini/gemini-2.5-flash` was answered by `gemini-2.5-flash-002` 1 times",
        "| audit | i2t | 1,234 | 5.0 | 0.1 | 5.0 | $1.50 |",
        "Licence, as stated by who pushed this: `cc-by-4.0`.",
        "`…/photos`, split `train`, fingerprint `abc`",
        "unasked changes by the image editor at a rate of 0.25",
        "| torch | `2` |",
        "repair-hf synthesize --output '…/synthesize' '--model=…/clip'",
        "You audit the mistakes of an image search engine",
        "@misc{liu-repair",
    ):
        assert told in card, told
    for hidden in ("/home/ann", "inside.example", "concurrency"):
        assert hidden not in card


def test_kinds_of_error_of_images_stand_on_the_card_once_they_are_labelled(synthesis, hostile, dropped):
    first, second = [row["record_id"] for row in hostile if row["direction"] == "t2i"][:2]
    labels = [
        {"record_id": first, "error_types": ["Object"]},
        {"record_id": second, "error_types": ["Object", "Count"]},
    ]
    (synthesis / "error_types.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in labels))
    card = card_of(synthesis, hostile, dropped).text
    for told in ("| known of | 2 of 3 | 3 of 3 |", "| Object | 100.0% | 0.0% |", "| Count | 50.0% | 100.0% |"):
        assert told in card, told


def test_a_strangers_text_stays_text_in_the_whole_card(synthesis, hostile, dropped):
    card = card_of(synthesis, hostile, dropped)
    page = rendered(card.text.split("---\n", 2)[2])
    known = "a blockquote code details em h1 h2 h3 img li p pre strong summary table tbody td th thead tr ul".split()
    assert set(re.findall(r"<(\w+)", page)) <= set(known)
    assert all(name.startswith("samples/") for name in re.findall(r'<img src="([^"]*)"', page))
    assert not re.findall(r"<a [^>]*>", page) and "onerror" not in re.sub(r"<code>.*?</code>", "", page)
    assert page.count("<summary>") == 2 and "49" not in re.findall(r"<code>\{\{ (.*?) \}\}", page)


def test_the_samples_are_of_both_directions_and_small(synthesis, hostile, dropped):
    card = card_of(synthesis, hostile, dropped)
    assert card.text.count("| query | ground truth | false positive | edit |") == 3
    assert card.text.count("**t2i**") == 2 and card.text.count("**i2t**") == 1
    assert set(card.pictures) == {"samples/1-edit.png", "samples/3-edit.png"}  # the fixture has no other images
    assert all(f"]({name})" in card.text for name in card.pictures)


def test_a_sample_picture_tells_nothing_but_itself():
    large = Image.new("RGB", (800, 400), "red")
    large.info |= {"exif": b"Exif\0\0 where it was taken", "icc_profile": b"by whom it was taken"}
    small = Image.open(io.BytesIO(of_records._picture(large)))
    assert small.size == (256, 128) and not small.info


def test_records_of_unknown_making_say_so(hostile, tmp_path):
    none = Dataset.from_dict({name: [] for name in DROPPED_FEATURES}, features=DROPPED_FEATURES)
    bare = hostile.map(
        lambda row: {"prompt_digest": "of old", "error_types": [], "edit_similarity": None}, features=FEATURES
    )
    save_records(tmp_path / "bare", bare, none)
    card = card_of(tmp_path / "bare", bare, none).text
    for told in (
        "Tokens and cost are not on record",
        "has other prompts than those that made these records",
        "No licence was stated",
        "Image-caption pairs: not on record.",
        "The command and its options are not on record.",
        "The versions of the software are not on record.",
        "Which version of the models answered is not on record.",
        "| t2i | 3 | not on record |",
        "there is no config `dropped`",
        "No kind is known of any of these records",
    ):
        assert told in card, told
    assert "license" not in DatasetCard(card).data.to_dict()


def test_no_key_is_in_a_card(synthesis, hostile, dropped, monkeypatch):
    monkeypatch.setenv("GEMINI_API_KEY", "a-very-secret-value")
    monkeypatch.setenv("HF_TOKEN", "another-secret-value")
    (synthesis / "command.txt").write_text(
        "repair-hf synthesize --note a-very-secret-value --url http://ann:pass@host/x\n"
    )
    leaking = hostile.map(
        lambda row: {"edit_instruction": "use hf_abcdefghijklmnopqrstuv and another-secret-value"}, features=FEATURES
    )
    card = card_of(synthesis, leaking, dropped).text
    for secret in ("a-very-secret-value", "another-secret-value", "hf_abcdefghijklmnopqrstuv", "ann:pass"):
        assert secret not in card
    assert "<hidden>" in card


@pytest.fixture(scope="module")
def trained(clip_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "repair"
    shutil.copytree(clip_folder, folder)
    options = {
        "pairs": "me/photos",
        "split": "train",
        "model": "openai/clip-vit-base-patch32",
        "records": "me/x-repair",
        "output": "runs/train",
    }
    options |= {
        "learning_rate": 3e-4,
        "grid_weight": 0.5,
        "seed": 7,
        "model_digest": "base-digest",
        "pairs_fingerprint": "abc",
    }
    options |= {"records_digest": "def", "hub_token": "<hidden>", "negatives": "grid"}
    summary = {
        "steps": 146,
        "processes": 2,
        "seconds": 61.2,
        "loss": 1.25,
        "grids": {"anchors": 24, "grids_3": 5, "grids_2": 7, "grids_0": 12},
    }
    summary |= {"eval_i2t_R@1": 0.5, "eval_t2i_MRR": 0.625}
    stage_folder(folder, "train", options, summary)
    lines = [
        {"step": 1, "loss": 2.5, "loss_global": 2.0, "loss_grid": 1.0, "logit_scale": 14.0},
        {"step": 2, "eval_loss": 1},
    ]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": lines}))
    return folder


@pytest.fixture
def results(trained, tmp_path) -> list[Path]:
    """Of the base, of this model, and of one that was trained without records."""
    plain = stage_folder(tmp_path / "vanilla", "train", {"records": None}, {"steps": 146, "seconds": 27.0})
    own, folders = DualEncoder.from_pretrained(trained, device="cpu").digest, []
    for name, model, weights, gain in (
        ("b", "x", "base-digest", 0),
        ("v", str(plain), "other", 0.01),
        ("r", str(trained), own, 0.03),
    ):
        metrics = {f"{side}_{kind}": 0.7 + gain for side in ("i2t", "t2i") for kind in ("R@1", "R@5", "R@10", "MRR")}
        options = {
            "pairs": "me/photos",
            "split": "test",
            "model": model,
            "model_digest": weights,
            "pairs_fingerprint": "t",
        }
        folders.append(stage_folder(tmp_path / name, "evaluate", options, metrics | {"n_images": 10, "n_texts": 50}))
    return folders


def test_the_model_card_tells_it_all(trained, results):
    card = model_card(trained, "me/clip-repair", results=results, license="mit")
    data = ModelCard(card).data
    assert data.base_model == "openai/clip-vit-base-patch32" and data.datasets == ["me/x-repair", "me/photos"]
    assert data.library_name == "transformers" and data.license == "mit"
    found = {result.metric_name: result.metric_value for result in data.eval_results}
    assert found["I2T R@1"] == 0.73 and len(found) == 8 and data.eval_results[0].dataset_type == "me/photos"
    for told in (
        'AutoModel.from_pretrained("me/clip-repair")',
        'SentenceTransformer("me/clip-repair")',
        "against base (before any of this): R@1 I2T +3.0, T2I +3.0 points, one run each",
        "against `vanilla` (as many steps, 146, on the pairs alone): R@1 I2T +2.0, T2I +2.0 points, one run each",
        "10 images, 50 texts.",
        "In training, on the validation split: I2T R@1 0.500, T2I MRR 0.625.",
        "Compositional benchmarks (ARO, SugarCrepe, Winoground): not measured.",
        "| steps | 146, on 2 processes |",
        "| with a 3x3 grid | 5 |",
        "| `learning_rate` | `0.0003` | `1e-05` |",
        "| 1 | 2.500 | 2.000 | 1.000 | 14.000 |",
        "One training run, seed 7",
        "[`openai/clip-vit-base-patch32`](https://huggingface.co/openai/clip-vit-base-patch32)",
    ):
        assert told in card, told
    assert card.index("| base ") < card.index("| `vanilla` ") < card.index("| **this model** ")
    for hidden in ("/home/ann", "hub_token", "| `grid_weight`"):
        assert hidden not in card


def test_compositional_results_stand_on_the_card_where_they_were_measured(trained, results):
    for folder, right in ((results[0], 0.5), (results[2], 0.625)):
        more = {
            "sugarcrepe_accuracy": right,
            "sugarcrepe_n_cases": 7511,
            "intervals": {"sugarcrepe_accuracy": [right - 0.01, right + 0.02]},
        }
        summary = json.loads((folder / "summary.json").read_text()) | more
        (folder / "summary.json").write_text(json.dumps(summary))
    card = model_card(trained, "me/clip-repair", results=results)
    assert "| % | base | `vanilla` | **this model** |" in card and "Cases: 7,511 of sugarcrepe." in card
    assert "| sugarcrepe accuracy | 50.0 [49.0, 52.0] | – | 62.5 [61.5, 64.5] |" in card
    assert "SugarCrepe, Winoground): not measured" not in card


def test_a_model_of_unknown_making_says_so(clip_folder):
    card = model_card(clip_folder, "me/clip")
    for told in (
        "whose base is not on record",
        "Not measured: no evaluation was given",
        "| steps | not on record |",
        "They are not on record.",
    ):
        assert told in card, told
    assert "model-index" not in card and "base_model" not in card


def test_other_dual_encoders_are_not_said_to_be_clip(siglip_folder):
    card = model_card(siglip_folder, "me/siglip")
    assert 'padding="max_length"' in card and "SentenceTransformer(" not in card


def test_what_was_not_measured_alike_is_not_compared(trained, results):
    with pytest.raises(UserError, match="is of .* as its weights are now; evaluate it"):
        model_card(trained, "me/x", results=results[:2])
    with pytest.raises(UserError, match="holds no finished evaluation"):
        model_card(trained, "me/x", results=[trained])
    with pytest.raises(UserError, match="both are of `this model`"):
        model_card(trained, "me/x", results=[*results, results[-1]])
    changed = yaml.safe_load((results[0] / "config.yaml").read_text()) | {"pairs_fingerprint": "other"}
    (results[0] / "config.yaml").write_text(yaml.safe_dump(changed))
    with pytest.raises(UserError, match="measured on different pairs"):
        model_card(trained, "me/x", results=results)


def test_what_is_on_the_hub_and_what_is_on_this_machine(tmp_path, monkeypatch):
    (tmp_path / "data" / "photos").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    options = {
        "a": "me/photos",
        "b": "data/photos",
        "c": "runs/gone",
        "d": "world/base",
        "e": "/x/y",
        "f": "photos",
        "output": "runs/train",
    }
    stage = Stage(tmp_path, options, {}, {}, "")
    assert [stage.hub_ids(name) for name in "abcdefg"] == [["me/photos"], *[[]] * 6]
    folder = open_stage(tmp_path / "out", command="train", options=options)
    monkeypatch.chdir("/")  # as on another machine: what was here is not there
    assert [Stage.of(folder).hub_ids(name) for name in "abcdefg"] == [["me/photos"], *[[]] * 6]


def test_records_of_several_rounds_are_listed_and_linked_and_lie_in_nobodys_folder(trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "several")
    options = yaml.safe_load((folder / "config.yaml").read_text())
    options["records"] = ["/home/ann/round-1/records", "me/photos-repair", "you/photos-repair"]
    (folder / "config.yaml").write_text(yaml.safe_dump(options))
    card = model_card(folder, "me/clip-repair")
    line = next(line for line in card.splitlines() if line.startswith("| records |"))
    assert "`…/records`, [`me/photos-repair`](https://huggingface.co/datasets/me/photos-repair), [`you/" in line
    assert ModelCard(card).data.datasets[:2] == ["me/photos-repair", "you/photos-repair"]
    assert "/home/ann" not in card


@pytest.mark.parametrize("name", ["dataset_card", "model_card"])
def test_every_variable_of_a_template_is_given_and_used(
    name, synthesis, hostile, dropped, trained, results, monkeypatch
):
    given, render = {}, rendering.render

    def remember(template_name, card_data, values):
        given.update(values)
        return render(template_name, card_data, values)

    monkeypatch.setattr(of_records, "render", remember)
    monkeypatch.setattr(of_models, "render", remember)
    card_of(synthesis, hostile, dropped) if name == "dataset_card" else model_card(trained, "me/x", results=results)
    needed = meta.find_undeclared_variables(Environment().parse(template(name)))
    assert needed - {"card_data"} == set(given)
    with pytest.raises(UndefinedError):
        render(name, DatasetCard("---\na: 1\n---\n").data, {key: given[key] for key in given if key != "repo"})


def test_every_package_is_in_the_wheel():
    """The templates lie outside src, so the packages are listed by hand."""
    import tomllib

    root = Path(__file__).parents[2]
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {".".join(path.parent.relative_to(root / "src").parts) for path in (root / "src").rglob("__init__.py")}
    assert sorted(listed) == sorted({*found, "repair_hf.hub_cards"}), (
        "Put new packages into `packages` of pyproject.toml."
    )


def test_equal_folders_give_equal_cards(synthesis, hostile, dropped):
    one, two = (card_of(synthesis, hostile, dropped) for _ in range(2))
    assert digest(one.text) == digest(two.text) and one.pictures == two.pictures
