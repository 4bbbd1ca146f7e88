"""Makers on 20 captions of a toy world, NegCLIP's swaps of words, and random false positives."""

import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scripted import Scripted
from study_runs import load_makers

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.provider import RejectedRequest
from repair_hf.mining.mine import mine
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.pairs.wording import bare_caption
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.study.makers import CONFIDENT_RANK, is_small, is_variant
from repair_hf.study.making import nearest_images
from repair_hf.study.negclip import VERB_PHRASE, negatives, swap
from repair_hf.study.random_failures import random_failures
from repair_hf.study.samples import DROPPED
from repair_hf.toyworld import captions, renderer
from repair_hf.toyworld.scenes import holds
from tests.study.counting import CountedEditor

MAKERS = load_makers()


def scene(pairs: Pairs, row: dict):
    return renderer.read_scene(pairs.images[pairs.images["image_id"][:].index(row["image_id"])]["image"])


def shown(row: dict):
    return renderer.read_scene(Path(row["edit_image"]["path"]).read_bytes())


def caption_of(pairs: Pairs, row: dict) -> str:
    return pairs.captions[pairs.captions["caption_id"][:].index(row["caption_id"])]["caption"]


@pytest.mark.parametrize("name", MAKERS)
def test_calls_are_those_declared_and_a_second_run_asks_nothing(name, made, run, pairs):
    """Each caption has a sample or a reason; `test_prices` compares what is declared with the paper."""
    one, maker = made(name), MAKERS[name]
    count = one.context.llm_calls, one.context.images
    asked = count[0] / 20, count[1] / 20
    assert asked == (maker.answers, maker.edits + maker.draws)
    assert len(pairs) == 20 and one.provider.calls <= count[0] and one.editor.made <= count[1]
    assert (one.provider.calls > 0, one.editor.made > 0) == (asked[0] > 0, asked[1] > 0)
    again = run(name, one.folder, Scripted(fail_after=0))
    assert again.rows == one.rows and (again.provider.calls, again.editor.made) == (0, 0)
    assert (again.context.llm_calls, again.context.images) == count  # counts as if nothing were reused
    dropped = one.context.dropped
    kept, lost = {row["caption_id"] for row in one.rows}, [row["caption_id"] for row in dropped]
    assert kept.isdisjoint(lost) and kept | set(lost) == set(pairs.captions["caption_id"])
    assert len(lost) == len(set(lost)) and all(set(row) == set(DROPPED) for row in dropped)
    if name == "alia":  # a caption that mentions everything has no variant
        assert "no_op" in {row["reason"] for row in dropped}


@pytest.mark.parametrize(
    ("gives", "reason"), [(lambda source: None, "editor_failed"), (lambda source: source.copy(), "no_op")]
)
def test_an_editor_that_does_nothing_costs_its_samples(gives, reason, run, tmp_path):
    one = run("coco-cf", tmp_path, editor=CountedEditor(gives))
    assert one.rows == [] and [row["reason"] for row in one.context.dropped] == [reason] * 20


def test_negclip_swaps_words(made, pairs):
    rows = made("negclip").rows
    assert 0 < len(rows) <= 5 * 20
    for row in rows:
        caption = caption_of(pairs, row)
        assert bare_caption(row["text"]) != bare_caption(caption)
        before, after = (Counter(re.findall(r"\w+", text.casefold())) for text in (caption, row["text"]))
        assert before == after and row["text"][0].isupper() == caption[0].isupper()
    assert max(Counter(row["caption_id"] for row in rows).values()) > 1


LEAST = {"sugarcrepe": 11, "tripletclip": 11, "laclip": 20, "stablerep": 6, "alia": 6, "coco-cf": 11}


@pytest.mark.parametrize("name", LEAST)
def test_samples_are_true_or_false_as_they_should(name, made, pairs):
    rows = made(name).rows
    assert len({row["caption_id"] for row in rows}) == len(rows) >= LEAST[name]
    for row in rows:
        caption, before = caption_of(pairs, row), scene(pairs, row)
        facts, said = captions.parse(caption), row.get("text") and captions.parse(row["text"])
        if name in ("sugarcrepe", "tripletclip"):
            assert not holds(said, before)
        if name in ("tripletclip", "coco-cf"):
            assert holds(said, shown(row))
        if name == "laclip":
            assert said == facts and bare_caption(row["text"]) != bare_caption(caption)
        if name in ("stablerep", "alia"):
            assert holds(facts, shown(row))
        if name == "alia":  # what the caption does not mention has changed
            assert shown(row) != before
        if name == "coco-cf":
            things = [(said.first, facts.first), (said.second, facts.second)]
            assert sum(one.shape != other.shape for one, other in things if one) == 1


def test_candidates_are_chosen_by_the_retriever(pairs, run, encoder, tmp_path):
    """The nearest caption that differs; the image with the highest cosine with its row's text, of those that pass."""
    caption = pairs.captions["caption"][0]
    texts = [caption.upper() + ".", "a red star", "two blue boxes at night"]
    said = iter(texts)
    answers = Scripted(lambda stage, shown: {"answer": next(said, texts[0])} if json.dumps(caption) in shown else None)
    one = run("coco-cf", tmp_path, answers)
    vectors = encoder.embed_texts([caption, *texts[1:]])
    assert one.rows[0]["text"] == texts[1 + int((vectors[1:] @ vectors[0]).argmax())]

    files = sorted(tmp_path.glob("candidates/*/*.png"))[:5]
    edited, wanted, nearest = {0: files[:2], 1: files[2:]}, encoder.embed_texts(texts[:2]), {}
    for (row, some), vector in zip(edited.items(), wanted, strict=True):
        scores = encoder.embed_images([Image.open(path) for path in some]) @ vector
        nearest[row] = some[int(scores.argmax())]
    assert nearest_images(encoder, edited, wanted) == nearest
    assert nearest_images(encoder, edited, wanted, lambda vectors, own: np.arange(5) == 4) == {1: files[4]}


def test_alias_filters_drop_candidates_that_left_their_caption():
    """A candidate must be nearer to its caption than to a generic one, and its caption among the nearest."""
    rng = np.random.default_rng(0)
    generic = np.array([[0.0, 0.0, 1.0]], np.float32)
    candidates = np.array([[0.9, 0.1, 0.3], [0.3, 0.1, 0.9]], np.float32)
    caption = np.array([1.0, 0.0, 0.0], np.float32)
    nearer = rng.uniform(0.95, 1.0, (CONFIDENT_RANK, 3)).astype(np.float32)  # nearer to either candidate
    own = candidates @ caption
    for count, kept in ((0, True), (CONFIDENT_RANK - 1, True), (CONFIDENT_RANK, False)):
        texts = np.stack([caption, *nearer[:count]])
        assert is_variant(candidates, own, texts, generic).tolist() == [kept, False]


def test_an_interrupted_run_goes_on_where_it_was(made, run, tmp_path):
    whole, first, editor = made("coco-cf"), Scripted(fail_after=25), CountedEditor()
    with pytest.raises(RunStopped, match="out of credit"):
        run("coco-cf", tmp_path, first, editor)
    assert first.calls == 25 and editor.made == 0
    second = run("coco-cf", tmp_path, Scripted(), editor)
    assert first.calls + second.provider.calls == whole.provider.calls and editor.made == whole.editor.made
    texts = [[(row["caption_id"], row["text"]) for row in one.rows] for one in (second, whole)]
    assert texts[0] == texts[1]


def test_a_useless_answer_costs_its_own_sample_only(pairs, made, run, tmp_path):
    """An empty answer, a refusal, the caption itself, one word: no sample, and a reason."""
    words = pairs.captions["caption"][:4]
    said = ["", {"answer": None}, {"answer": words[2].upper()}, {"answer": "Circle"}]
    useless = dict(zip(words, said, strict=True))

    def script(stage: str, shown: str) -> str | dict | None:
        return next((said for caption, said in useless.items() if json.dumps(caption) in shown), None)

    one = run("laclip", tmp_path, Scripted(script))
    lost = {row["caption_id"] for row in pairs.captions if row["caption"] in useless}
    assert {row["caption_id"] for row in one.rows} == {row["caption_id"] for row in made("laclip").rows} - lost
    assert one.context.llm_calls == 20
    assert {row["caption_id"] for row in one.context.dropped} == lost
    assert [row["reason"] for row in one.context.dropped] == ["llm_unparsed", "llm_refused", "no_op", "filtered"]


def test_what_a_provider_rejects_has_no_sample_and_all_else_has(made, run, tmp_path):
    class Moody(Scripted):
        async def __call__(self, request):
            if self.calls >= 5 and len(self.rejected) < 4:
                self.rejected.append(request)
                raise RejectedRequest("not now")
            return await super().__call__(request)

    provider = Moody()
    provider.rejected = []
    one = run("laclip", tmp_path, provider)
    lost = {row["caption_id"] for row in one.context.dropped}
    assert [row["reason"] for row in one.context.dropped] == ["llm_failed"] * len(provider.rejected) and len(lost) == 4
    rows = [row["caption_id"] for row in made("laclip").rows]
    assert [row["caption_id"] for row in one.rows] == [row for row in rows if row not in lost]


@pytest.mark.parametrize(
    ("caption", "text", "expected"),
    [
        ("a dog", "a cat", True),
        ("dog", "cat", True),  # one word may always change
        ("a red dog runs", "a red cat sits", True),  # half of the words
        ("a red dog runs", "a blue cat sits", False),
        ("a red dog", "a blue cat", False),
        ("a red dog", "A RED dog on a mat", True),  # three of six
    ],
)
def test_at_most_half_of_a_hard_negatives_words_are_new(caption, text, expected):
    assert is_small(caption, text) == expected


# NegCLIP's five generators on captions whose parts are known


@pytest.fixture(scope="module")
def swapped():
    """The negatives of a document, written as `word/tag/part of speech/head/relation`."""
    spacy = pytest.importorskip("spacy", reason="words are tagged by spaCy: pip install 'repair-hf[study]'")
    from spacy.matcher import Matcher
    from spacy.tokens import Doc

    vocab = spacy.blank("en").vocab
    matcher = Matcher(vocab)
    matcher.add("verb phrase", [VERB_PHRASE])

    def make(text: str, seed: int = 0) -> list[str]:
        words, tags, pos, heads, deps = zip(*(word.split("/") for word in text.split()), strict=True)
        document = Doc(vocab, words, tags=tags, pos=pos, heads=[int(head) for head in heads], deps=deps)
        return [found.strip() for found in negatives(document, matcher, random.Random(seed))]

    return make


BOY = (
    "A/DT/DET/2/det small/JJ/ADJ/2/amod boy/NN/NOUN/4/nsubj quickly/RB/ADV/4/advmod "
    "runs/VBZ/VERB/4/ROOT and/CC/CCONJ/4/cc a/DT/DET/8/det big/JJ/ADJ/8/amod "
    "dog/NN/NOUN/10/nsubj slowly/RB/ADV/10/advmod jumps/VBZ/VERB/4/conj"
)


def test_each_generator_swaps_its_two_parts(swapped):
    assert swapped(BOY) == [
        "A big dog quickly runs and a small boy slowly jumps",
        "A small boy slowly jumps and a big dog quickly runs",
        "A small dog quickly runs and a big boy slowly jumps",
        "A small boy slowly runs and a big dog quickly jumps",
        "A big boy quickly runs and a small dog slowly jumps",
    ]


def test_two_distinct_parts_are_drawn_and_plural_nouns_where_there_are_no_two_singular_ones(swapped):
    text = "a/DT/DET/1/det cat/NN/NOUN/1/ROOT dog/NN/NOUN/1/conj cow/NN/NOUN/1/conj"
    assert {swapped(text, seed)[0] for seed in range(40)} == {"a dog cat cow", "a cow dog cat", "a cat cow dog"}
    assert swapped("a/DT/DET/1/det Dog/NN/NOUN/1/ROOT and/CC/CCONJ/1/cc a/DT/DET/4/det dog/NN/NOUN/1/conj") == []
    text = "dogs/NNS/NOUN/0/ROOT and/CC/CCONJ/0/cc cats/NNS/NOUN/0/conj near/IN/ADP/0/prep water/NN/NOUN/3/pobj"
    assert swapped(text) == ["cats and dogs near water"]


def test_a_swap_keeps_spacing_and_the_capital():
    assert swap("Dogs, and  a cat.", (0, 4), (13, 16)) == "Cat, and  a dogs."
    assert swap("we see a cat, a dog", (9, 12), (16, 19)) == "we see a dog, a cat"


# Random false positives


def test_queries_stay_and_any_wrong_answers_are_drawn_each_once(pairs_folder, clip_folder):
    pairs = load_pairs(pairs_folder, split="all")
    encoder = DualEncoder.from_pretrained(clip_folder)
    mined = mine(str(clip_folder), pairs, d_i2t=4, d_t2i=6)
    drawn = [random_failures(mined, pairs, encoder, seed).to_list() for seed in range(5)]
    kept = ("direction", "q", "gt", "gt_score", "gt_rank", "q_id", "gt_id")
    images, texts = encoder.embed_pairs(pairs)
    for rows in drawn:
        assert [[row[name] for name in kept] for row in rows] == [[row[name] for name in kept] for row in mined]
        assert len({(row["direction"], row["q"], row["fp"]) for row in rows}) == len(rows)
        for row in rows:
            is_t2i = row["direction"] == "t2i"
            query, candidates = (texts[row["q"]], images) if is_t2i else (images[row["q"]], texts)
            caption, image = (row["q"], row["fp"]) if is_t2i else (row["fp"], row["q"])
            assert pairs.caption_image[caption] != image
            scores = candidates @ query
            assert row["fp_score"] == pytest.approx(scores[row["fp"]], abs=1e-6)
            assert abs(row["fp_rank"] - 1 - np.sum(scores > scores[row["fp"]])) <= 1  # one may tie
    assert drawn[3] == random_failures(mined, pairs, encoder, 3).to_list() != drawn[4]
    answers = {row["fp"] for rows in drawn for row in rows if (row["direction"], row["q"]) == ("t2i", 0)}
    assert answers == set(range(len(images))) - {0}
