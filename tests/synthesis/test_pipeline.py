"""The synthesis as a whole, on a small toy world with its oracle, and with answers made to measure."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest
from datasets import Dataset
from datasets import Image as ImageFeature
from PIL import Image

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.client import ChatModel
from repair_hf.llm.failures import FailedRequest, ProviderError
from repair_hf.llm.journal import Journal
from repair_hf.llm.limits import Limits
from repair_hf.llm.prompts import prompt_digest
from repair_hf.llm.provider import Reply
from repair_hf.llm.sending import RequestOptions
from repair_hf.mining.false_positives import mine_false_positives
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.records.dataset import save_records, summarize
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.pipeline import Synthesizer
from repair_hf.toyworld import captions as world_captions
from repair_hf.toyworld import oracle, renderer, scenes
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.editor import WorldEditor

AUDITED = {"gt_reason": "it fits", "gt_valid": True, "fp_reason": "it does not fit", "fp_too_similar": False}


class Editor(WorldEditor):
    own_process = False


class Asked:
    """Answers like the toy world's oracle, unless `script` says otherwise, and remembers what was asked."""

    def __init__(self, script=lambda stage, shown: None, *, fail_after: int | None = None) -> None:
        self.script, self.fail_after = script, fail_after
        self.requests: list[dict] = []
        self._oracle = oracle.provider()

    async def __call__(self, request) -> Reply:
        await asyncio.sleep(0)
        if self.fail_after is not None and len(self.requests) >= self.fail_after:
            raise ProviderError("out of credit")
        self.requests.append(request)
        shown = "\n".join(part.get("text", "image") for part in request["messages"][1]["content"])
        stage = "edit" if "Edit instruction:" in shown else "audit" if "Ground-truth" in shown else "instruct"
        answer = self.script(stage, shown)
        if answer is None:
            return await self._oracle(request)
        if isinstance(answer, Reply):
            return answer
        return Reply(answer if isinstance(answer, str) else json.dumps(answer), "stop", 10, 5, 0.001, "m")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Pairs:
    folder = build_world(tmp_path_factory.mktemp("world"), splits={"train": 16, "validation": 1, "test": 1})
    return load_pairs(folder)


@pytest.fixture(scope="module")
def encoder(clip_folder) -> DualEncoder:
    return DualEncoder.from_pretrained(str(clip_folder))


@pytest.fixture(scope="module")
def failures(pairs, encoder) -> Dataset:
    images, texts = (
        encoder.embed_images([row["image"] for row in pairs.images]),
        encoder.embed_texts(pairs.captions["caption"][:]),
    )
    mined = mine_false_positives(
        images, texts, pairs.caption_image, d_i2t=2, same_text_is_positive=pairs.captions["caption"][:]
    )
    return mined.filter(lambda row: row["direction"] == "i2t" or row["q"] % 8 == 0)


def synthesize(pairs, encoder, failures, folder: Path, *, provider=None, editor=None, concurrency: int = 4, **options):
    provider = provider or Asked()
    with Journal(folder / "journal.jsonl") as journal:
        chat = ChatModel(
            "world/oracle", journal=journal, provider=provider, options=RequestOptions(limits=Limits(concurrency))
        )
        synthesizer = Synthesizer(pairs, encoder, chat, editor or Editor(), **options)
        records, dropped = synthesizer.run(failures, folder)
    return records, dropped, synthesizer


def rows(records: Dataset) -> list[dict]:
    """Comparable rows: images as bytes, whatever folder they lie in."""
    for name, kind in records.features.items():
        if isinstance(kind, ImageFeature):
            records = records.cast_column(name, ImageFeature(decode=False))
    listed = records.to_list()
    for row in listed:
        for name, value in row.items():
            if isinstance(value, dict):
                row[name] = value["bytes"] or Path(value["path"]).read_bytes()
    return listed


@pytest.fixture(scope="module")
def whole(pairs, encoder, failures, tmp_path_factory):
    """An undisturbed run: records, dropped, what was asked, and its folder."""
    asked = Asked()
    folder = tmp_path_factory.mktemp("whole")
    records, dropped, _ = synthesize(pairs, encoder, failures, folder, provider=asked)
    return records, dropped, asked, folder


def test_every_failure_becomes_a_record_or_is_dropped_with_a_reason(whole, failures, pairs):
    records, dropped, *_ = whole
    found = summarize(records, dropped)
    assert {way: table["mined"] for way, table in found.items()} == Counter(failures["direction"])
    assert all(found[way]["kept"] > 5 for way in found)
    ids = {
        "t2i": (pairs.captions["caption_id"], pairs.images["image_id"]),
        "i2t": (pairs.images["image_id"], pairs.captions["caption_id"]),
    }
    mined = [
        (row["direction"], ids[row["direction"]][0][row["q"]], ids[row["direction"]][1][row["fp"]]) for row in failures
    ]
    assert len(set(mined)) == len(mined)
    for saved in (records, dropped):
        keys = list(zip(saved["direction"], saved["q_id"], saved["fp_id"], strict=True))
        assert keys == [key for key in mined if key in set(keys)]  # in the order of the failures


def test_a_record_holds_what_its_ids_name(whole, pairs, encoder):
    captions = {row["caption_id"]: row for row in pairs.captions}
    images = {row["image_id"]: at for at, row in enumerate(pairs.images)}
    for row in whole[0]:
        if row["direction"] == "t2i":
            assert row["q_text"] == captions[row["q_id"]]["caption"]
            assert images[row["gt_id"]] == captions[row["q_id"]]["image_index"]
            for role in ("gt", "fp"):
                assert row[f"{role}_image"].tobytes() == pairs.images[images[row[f"{role}_id"]]]["image"].tobytes()
            assert row["edit_text"] is row["q_image"] is row["fp_text"] is None and row["error_types"] == []
        else:
            assert row["q_image"].tobytes() == pairs.images[images[row["q_id"]]]["image"].tobytes()
            assert row["gt_id"] == f"{row['q_id']}#0" and row["gt_text"] == captions[row["gt_id"]]["caption"]
            assert row["fp_text"] == captions[row["fp_id"]]["caption"] and row["error_types"]
            assert row["edit_image"] is row["gt_image"] is row["q_text"] is None
        assert (row["llm"], row["editor"]) == ("world/oracle", "world")
        assert row["retriever"].startswith("clip") and row["retriever"].endswith(f"@{encoder.digest}")
        assert (row["round"], row["seed"], row["prompt_digest"]) == (1, 0, prompt_digest())
        similarities = row["candidate_similarities"]
        assert (
            row["edit_similarity"] == similarities[row["candidate"]] == max(s for s in similarities if s is not None)
        )
        assert row["gt_reason"] and row["fp_reason"] and row["edit_instruction"]


def test_an_edit_fits_its_query(whole):
    for row in whole[0]:
        caption = row["q_text"] or row["edit_text"]
        scene = renderer.read_scene(row["edit_image"] or row["q_image"])
        assert not scenes.differences(world_captions.parse(caption), scene)


def test_scores_come_from_the_failures(whole, failures, pairs):
    ids = pairs.images["image_id"][:]
    mined = {
        (ids[row["q"]], pairs.captions["caption_id"][row["fp"]]): row for row in failures if row["direction"] == "i2t"
    }
    for row in whole[0]:
        if row["direction"] == "i2t":
            for name in ("fp_score", "fp_rank", "gt_score", "gt_rank"):
                assert row[name] == pytest.approx(mined[row["q_id"], row["fp_id"]][name])


def test_a_second_run_asks_and_draws_nothing(pairs, encoder, failures, whole, tmp_path):
    first, *_ = synthesize(pairs, encoder, failures, tmp_path)
    asked = Asked()
    again, dropped, synthesizer = synthesize(pairs, encoder, failures, tmp_path, provider=asked)
    assert asked.requests == [] and synthesizer.images_made == 0 and synthesizer.images_found > 0
    assert rows(again) == rows(first) == rows(whole[0]) and rows(dropped) == rows(whole[1])


@pytest.mark.parametrize("options", [{"workers": 1, "concurrency": 1}, {"workers": 200, "concurrency": 64}])
def test_concurrency_changes_nothing(options, pairs, encoder, failures, whole, tmp_path):
    records, dropped, _ = synthesize(pairs, encoder, failures, tmp_path, **options)
    assert rows(records) == rows(whole[0]) and rows(dropped) == rows(whole[1])


def test_a_run_that_broke_goes_on_where_it_was(pairs, encoder, failures, whole, tmp_path):
    requests = []
    for fail_after in (0, 25, 50, 1):
        asked = Asked(fail_after=fail_after)
        with pytest.raises(ProviderError, match="out of credit"):
            synthesize(pairs, encoder, failures, tmp_path, provider=asked)
        requests += asked.requests
    last = Asked()
    records, dropped, _ = synthesize(pairs, encoder, failures, tmp_path, provider=last)
    assert rows(records) == rows(whole[0]) and rows(dropped) == rows(whole[1])
    assert len(requests) > 70 and len(requests) + len(last.requests) == len(whole[2].requests)


def test_without_audit_every_failure_is_repaired(pairs, encoder, failures, whole, tmp_path):
    asked = Asked()
    records, dropped, _ = synthesize(pairs, encoder, failures, tmp_path, provider=asked, audited=False)
    shown = ["".join(part.get("text", "") for part in request["messages"][1]["content"]) for request in asked.requests]
    assert shown and not any("Ground-truth" in text for text in shown)
    assert set(records["gt_reason"]) == {None} and set(dropped["reason"]) <= {"no_op"}
    kept = {(row["direction"], row["q_id"], row["fp_id"]) for row in whole[0]}
    kept_now = {(row["direction"], row["q_id"], row["fp_id"]) for row in records}
    audited_away = [row for row in whole[1] if row["reason"] in ("gt_invalid", "fp_too_similar")]
    assert kept <= kept_now and len(records) + len(dropped) == len(failures)
    assert {(row["q_id"], row["fp_id"]) for row in dropped} <= {(row["q_id"], row["fp_id"]) for row in audited_away}


def test_the_first_candidate_instead_of_the_nearest(pairs, encoder, failures, whole, tmp_path):
    (tmp_path / "journal.jsonl").write_bytes((whole[3] / "journal.jsonl").read_bytes())
    asked = Asked()
    records, _, _ = synthesize(pairs, encoder, failures, tmp_path, provider=asked, select="first")
    assert not asked.requests  # the candidates are the same
    places = Counter()
    for first, nearest in zip(records, whole[0], strict=True):
        scores = nearest["candidate_similarities"]
        assert first["candidate_similarities"] == scores and first["q_id"] == nearest["q_id"]
        assert first["candidate"] == next(place for place, score in enumerate(scores) if score is not None)
        assert scores[nearest["candidate"]] == max(score for score in scores if score is not None)
        places[nearest["candidate"]] += 1
    assert len(places) > 1  # else the two would be one


def test_identical_work_is_done_once(pairs, encoder, failures, whole, tmp_path):
    asked = Asked()
    twice = Dataset.from_list([row for row in failures for _ in range(2)])
    records, _, synthesizer = synthesize(pairs, encoder, twice, tmp_path, provider=asked)
    assert len(asked.requests) == len(whole[2].requests) and len(records) == 2 * len(whole[0])
    assert synthesizer.images_made == len(list(tmp_path.rglob("candidates/*/*.png")))


def test_captions_of_equal_words_are_one_question(pairs, encoder, failures, tmp_path):
    row = next(row for row in failures if row["direction"] == "i2t")
    texts = pairs.captions["caption"][:]
    other = next(
        at
        for at, index in enumerate(pairs.captions["image_index"])
        if index not in (row["q"], pairs.caption_image[row["fp"]])
    )
    texts[other] = texts[row["fp"]]
    same = Pairs(pairs.images, pairs.captions.remove_columns("caption").add_column("caption", texts))
    asked = Asked()
    records, dropped, _ = synthesize(
        same, encoder, Dataset.from_list([row, row | {"fp": other}]), tmp_path, provider=asked
    )
    assert len(records) + len(dropped) == 2 and len(asked.requests) in (1, 5)


def test_what_failed_with_another_process_is_asked_once_more(pairs, encoder, failures, whole, tmp_path):
    """The main process goes through all failures when the others are done; what it then asks is counted too."""
    asked = Asked()
    is_down = True

    async def provider(request) -> Reply:
        if is_down and crc32(repr(request).encode()) % 4 == 0:
            raise FailedRequest("no answer")
        return await asked(request)

    with Journal(tmp_path / "journal.jsonl") as journal:
        chat = ChatModel("world/oracle", journal=journal, provider=provider)
        synthesizer = Synthesizer(pairs, encoder, chat, Editor())
        synthesizer._share(repairs := [synthesizer._repair(row) for row in failures.to_list()], tmp_path)
        assert {repair.reason for repair in repairs} >= {"llm_failed", None}
        before, replayed = (sum(getattr(use, name) for use in chat.usage.values()) for name in ("calls", "replayed"))
        made, is_down = synthesizer.images_made, False
        synthesizer._take_over(repairs, tmp_path)
        synthesizer._build(repairs, tmp_path)
        assert sum(use.calls for use in chat.usage.values()) == len(journal) == len(asked.requests) > before
        assert sum(use.replayed for use in chat.usage.values()) == replayed
    drawn = len(list((tmp_path / "candidates").rglob("*.png")))
    assert synthesizer.images_made == drawn == len(list((whole[3] / "candidates").rglob("*.png"))) > made
    assert not any(repair.reason == "llm_failed" for repair in repairs)
    assert rows(Dataset.from_file(str(tmp_path / "records.arrow"))) == rows(whole[0])


def test_runs_inside_a_running_event_loop(pairs, encoder, failures, whole, tmp_path):
    async def notebook():
        return synthesize(pairs, encoder, failures, tmp_path)

    records, *_ = asyncio.run(notebook())
    assert rows(records) == rows(whole[0])


def test_one_chat_model_serves_several_runs(pairs, encoder, failures, whole, tmp_path):
    with Journal(tmp_path / "journal.jsonl") as journal:
        chat = ChatModel("world/oracle", journal=journal, provider=Asked(), options=RequestOptions(limits=Limits(2)))
        synthesizer = Synthesizer(pairs, encoder, chat, Editor())
        few = failures.select(range(20))
        synthesizer.run(few, tmp_path / "first")
        records, _ = synthesizer.run(failures, tmp_path / "second")
    assert rows(records) == rows(whole[0])


def test_the_query_image_goes_to_the_caption_editor_on_demand(pairs, encoder, failures, tmp_path):
    asked = Asked()
    records, *_ = synthesize(pairs, encoder, failures, tmp_path, provider=asked, attach_image=True)
    edits = [
        request
        for request in asked.requests
        if any("Edit instruction:" in part.get("text", "") for part in request["messages"][1]["content"])
    ]
    assert edits and all(
        request["messages"][1]["content"][0] == {"type": "text", "text": "Query image:"} for request in edits
    )
    assert "i2t" in records["direction"]


def test_the_seed_decides_the_draws(pairs, encoder, failures, whole, tmp_path):
    records, *_ = synthesize(pairs, encoder, failures, tmp_path, seed=1)
    edits, others = ([row["edit_text"] for row in rows(one) if row["edit_text"]] for one in (records, whole[0]))
    assert len(edits) == len(others) and edits != others


def of(direction: str, failures: Dataset, count: int = 1) -> Dataset:
    return Dataset.from_list([row for row in failures if row["direction"] == direction][:count])


def at_stage(wanted: str, answer):
    """Sound verdicts and instructions but for one stage."""
    sound = {
        "audit": AUDITED,
        "instruct": {"edit_instruction": "[Count Error]: more. Therefore, replace 'a' with 'two'."},
        "edit": "two dogs",
    }
    return lambda stage, shown: answer if stage == wanted else sound[stage]


@pytest.mark.parametrize(
    ("direction", "stage", "answer", "reason", "detail"),
    [
        ("t2i", "audit", AUDITED | {"gt_valid": False}, "gt_invalid", None),
        ("i2t", "audit", AUDITED | {"fp_too_similar": True}, "fp_too_similar", None),
        ("i2t", "audit", AUDITED | {"gt_valid": False, "fp_too_similar": True}, "gt_invalid", None),
        ("i2t", "audit", AUDITED | {"gt_valid": "yes"}, "llm_unparsed", "gt_valid"),
        ("t2i", "audit", "I think so.", "llm_unparsed", "no JSON"),
        ("i2t", "audit", Reply("I cannot.", "refusal", 1, 1, 0.0, "m"), "llm_refused", "I cannot."),
        ("i2t", "instruct", {"edit_instruction": "Replace 'a' with 'b'."}, "llm_unparsed", "square brackets"),
        ("t2i", "instruct", {"edit_instruction": " "}, "llm_unparsed", "edit_instruction"),
        (
            "i2t",
            "instruct",
            {"edit_instruction": "[No Error]: The caption fits the image."},
            "no_op",
            "nothing to change",
        ),
        ("t2i", "instruct", {"edit_instruction": "No change."}, "no_op", "nothing to change"),
        (
            "t2i",
            "instruct",
            {"edit_instruction": "Do something that this editor cannot read."},
            "no_op",
            "no candidate differs",
        ),
        ("i2t", "edit", Reply("", "content_filter", 1, 0, 0.0, "m"), "llm_refused", "content_filter"),
        ("i2t", "edit", '""', "llm_unparsed", "no caption"),
        ("i2t", "edit", "I'm sorry, but I can't help with that.", "llm_refused", "declined"),
    ],
)
def test_a_row_is_dropped_for_its_reason(direction, stage, answer, reason, detail, pairs, encoder, failures, tmp_path):
    records, dropped, _ = synthesize(
        pairs, encoder, of(direction, failures), tmp_path, provider=Asked(at_stage(stage, answer))
    )
    assert len(records) == 0 and dropped["reason"] == [reason]
    assert dropped["detail"] == [None] if detail is None else detail in dropped["detail"][0]
    assert dropped["gt_reason"] == ["it fits"] or reason.startswith("llm") and stage == "audit"


def test_an_unchanged_caption_is_no_edit(pairs, encoder, failures, tmp_path):
    row = of("i2t", failures)
    caption = pairs.captions["caption"][row[0]["fp"]]
    asked = Asked(at_stage("edit", f' "{caption.upper()}." \n'))
    records, dropped, _ = synthesize(pairs, encoder, row, tmp_path, provider=asked)
    assert len(records) == 0 and dropped["reason"] == ["no_op"]


def test_one_sound_candidate_is_enough(pairs, encoder, failures, tmp_path):
    answers = iter(
        [
            Reply("", "content_filter", 1, 0, 0.0, "m"),
            "two\n dogs ",
            pairs.captions["caption"][of("i2t", failures)[0]["fp"]],
        ]
    )
    sound = at_stage("none", None)
    asked = Asked(lambda stage, shown: next(answers) if stage == "edit" else sound(stage, shown))
    records, dropped, _ = synthesize(pairs, encoder, of("i2t", failures), tmp_path, provider=asked)
    assert len(dropped) == 0 and records["edit_text"] == ["two dogs"]
    assert [value is None for value in records[0]["candidate_similarities"]] == [True, False, True]
    assert records["candidate"] == [1]


class Refusing(Editor):
    def edit(self, sources, instructions, seeds):
        return [[None] * len(row) for row in seeds]


def test_an_editor_that_gives_nothing_costs_the_row(pairs, encoder, failures, tmp_path):
    records, dropped, _ = synthesize(pairs, encoder, of("t2i", failures), tmp_path, editor=Refusing())
    assert len(records) == 0 and dropped["reason"] == ["editor_failed"]


def test_a_broken_image_costs_its_own_rows_only(encoder, failures, tmp_path):
    """It was whole when the pairs were loaded and broke afterwards."""
    folder = build_world(tmp_path / "world", splits={"train": 16, "validation": 1, "test": 1})
    pairs = load_pairs(folder)
    (folder / "images" / "train-00003.png").write_bytes(b"no image any more")
    (folder / "images" / "train-00007.png").unlink()
    records, dropped, _ = synthesize(pairs, encoder, failures, tmp_path / "out")
    save_records(tmp_path / "out", records, dropped)
    broken = {"train-00003.png", "train-00007.png"}
    lost = [row for row in dropped if row["reason"] == "unreadable_image"]
    touched = [row for row in failures if row["direction"] == "i2t" and pairs.images["image_id"][row["q"]] in broken]
    assert len([row for row in lost if row["direction"] == "i2t"]) == len(touched) > 0
    assert all(
        {row["q_id"].split("#")[0], row["gt_id"].split("#")[0], row["fp_id"].split("#")[0]} & broken for row in lost
    )
    assert not {row["q_id"] for row in records} & broken and len(records) + len(dropped) == len(failures)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda row: row | {"fp": 10_000}, "1 of 2 failures name a fp that these pairs do not have"),
        (lambda row: row | {"q_id": "another.png"}, "name a q .*mined from other pairs"),
        (lambda row: {key: value for key, value in row.items() if key != "gt_rank"}, r"lack \['gt_rank'\]"),
    ],
)
def test_failures_of_other_pairs_are_refused(spoil, complaint, pairs, encoder, failures, tmp_path):
    row, other = failures[0], failures[1]
    ids = {"q_id": pairs.captions["caption_id"][row["q"]]}
    spoilt = Dataset.from_list([spoil(row | ids), other | {"q_id": pairs.captions["caption_id"][other["q"]]}])
    if "lack" in complaint:
        spoilt = spoilt.remove_columns([name for name in ("gt_rank",) if name in spoilt.column_names])
    with pytest.raises(UserError, match=complaint):
        synthesize(pairs, encoder, spoilt, tmp_path)


def test_no_failures_give_no_records(pairs, encoder, failures, tmp_path):
    records, dropped, _ = synthesize(pairs, encoder, failures.select([]), tmp_path)
    assert len(records) == len(dropped) == 0
    save_records(tmp_path / "out", records, dropped)


@pytest.mark.parametrize("options", [{"candidates": 0}, {"workers": 0}])
def test_refuses_impossible_counts(options, pairs, encoder, failures, tmp_path):
    with pytest.raises(UserError, match="must be at least 1"):
        synthesize(pairs, encoder, failures, tmp_path, **options)


def test_editor_images_keep_their_scene(whole):
    edits = [row["edit_image"] for row in whole[0] if row["edit_image"] is not None]
    assert all(isinstance(image, Image.Image) and "scene" in image.info for image in edits)
