"""The makers on a tiny toy world with its oracle, by the world's own truth; then every baseline from its samples to a trained step."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from repair_hf.baselines import load_methods
from repair_hf.baselines.alia import WITHIN, is_variant
from repair_hf.baselines.choosing import image_scores, nearest_captions
from repair_hf.baselines.method import Baseline, Maker
from repair_hf.baselines.samples import DROPPED, SAMPLES, SampleRows
from repair_hf.baselines.workshop import Workshop
from repair_hf.config import RepairConfig
from repair_hf.encoder import DualEncoder
from repair_hf.llm.budget import Budget, BudgetSpent
from repair_hf.llm.client import ChatModel
from repair_hf.llm.journal import Journal
from repair_hf.llm.provider import ProviderError, Reply
from repair_hf.options import UserError
from repair_hf.pairs import Pairs, bare_caption, load_pairs
from repair_hf.records import build
from repair_hf.runs import RunStopped
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.toyworld import captions, oracle, renderer
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.editor import WorldEditor
from repair_hf.toyworld.scenes import holds
from repair_hf.training import train
from tests.synthesis.test_hosted import MODELS, SOON, ImageServer, png

BASELINES = {name: method for name, method in load_methods().items() if isinstance(method, Baseline)}
MAKERS = {maker.name: maker for method in BASELINES.values() for maker in method.parts.values()}
# The paper's overhead table: calls of the LLM and of the image model for one sample.
PER_SAMPLE = {
    "negclip": (0, 0),
    "sugarcrepe": (3, 0),
    "laclip": (1, 0),
    "stablerep": (0, 1),
    "alia": (1, 3),
    "coco-cf": (3, 3),
    "tripletclip": (1, 1),
}


class Oracle:
    """The oracle in this process, counted. It gives out after `fail_after` answers, and says `instead` where that has something to say."""

    def __init__(self, *, fail_after: int | None = None, instead=lambda request: None) -> None:
        self.calls, self.fail_after, self.instead, self._answer = 0, fail_after, instead, oracle.provider()

    async def __call__(self, request) -> Reply:
        await asyncio.sleep(0)
        if self.calls == self.fail_after:
            raise ProviderError("out of credit")
        self.calls += 1
        said = self.instead(request)
        return await self._answer(request) if said is None else Reply(said, "stop", 1, 1, 0.0, oracle.MODEL)


class Editor(WorldEditor):
    """The world's editor in this process, counted."""

    own_process = False

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def edit(self, sources, instructions, seeds):
        self.made += sum(map(len, seeds))
        return super().edit(sources, instructions, seeds)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Pairs:
    return load_pairs(build_world(tmp_path_factory.mktemp("world"), splits={"train": 4}))  # 20 captions


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return DualEncoder.from_pretrained("world/base", device="cpu")


def run(maker: Maker, pairs: Pairs, encoder: DualEncoder, folder: Path, provider=None, editor=None):
    """The samples of a maker, and its workshop."""

    async def make(workshop: Workshop) -> list[dict[str, Any]]:
        async with workshop.open(edits=maker.edits, draws=maker.draws):
            return await maker.make(workshop)

    if maker.name == "negclip":
        pytest.importorskip("spacy", reason="words are tagged by spaCy: pip install 'repair-hf[study]'")
    with Journal(folder / "journal.jsonl") as journal:
        chat = ChatModel(oracle.MODEL, journal=journal, provider=provider or Oracle())
        workshop = Workshop(pairs, encoder, chat, editor or Editor(), folder, spacy_model="world")
        return asyncio.run(make(workshop)), workshop


@pytest.fixture(scope="module")
def made(pairs, encoder, tmp_path_factory):
    """What a maker made, asked for and left behind; each made once."""
    found = {}

    def of(name: str):
        if name not in found:
            folder, provider, editor = tmp_path_factory.mktemp(name), Oracle(), Editor()
            rows, workshop = run(MAKERS[name], pairs, encoder, folder, provider, editor)
            found[name] = rows, workshop, provider, editor, folder
        return found[name]

    return of


def scene(pairs: Pairs, image_id: str):
    return renderer.read_scene(pairs.images[pairs.images["image_id"][:].index(image_id)]["image"])


def shown(row: dict):
    return renderer.read_scene(Path(row["edit_image"]["path"]).read_bytes())


def facts_of(pairs: Pairs, row: dict):
    return captions.parse(caption_of(pairs, row))


def caption_of(pairs: Pairs, row: dict) -> str:
    return pairs.captions[pairs.captions["caption_id"][:].index(row["caption_id"])]["caption"]


def test_the_table_names_every_maker():
    assert PER_SAMPLE.keys() == MAKERS.keys()


@pytest.mark.parametrize("name", MAKERS)
def test_calls_for_a_sample_are_the_papers(name, made):
    _, workshop, provider, editor, _ = made(name)
    maker = MAKERS[name]
    asked = workshop.asked.llm / workshop.tried, workshop.asked.images / workshop.tried
    assert asked == (sum(maker.asks.values()), maker.edits + maker.draws) == PER_SAMPLE[name]
    assert workshop.tried == 20 and provider.calls <= workshop.asked.llm and editor.made <= workshop.asked.images
    assert (provider.calls > 0, editor.made > 0) == (asked[0] > 0, asked[1] > 0)


@pytest.mark.parametrize("name", MAKERS)
def test_a_second_run_asks_and_draws_nothing(name, made, pairs, encoder):
    rows, workshop, *_, folder = made(name)
    provider, editor = Oracle(fail_after=0), Editor()
    again, second = run(MAKERS[name], pairs, encoder, folder, provider, editor)
    assert again == rows and (provider.calls, editor.made) == (0, 0)
    assert vars(second.asked) == vars(workshop.asked)  # what it would take from nothing


@pytest.mark.parametrize("name", MAKERS)
def test_a_caption_has_a_sample_or_a_reason(name, made, pairs):
    rows, workshop, *_ = made(name)
    kept, dropped = {row["caption_id"] for row in rows}, [row["caption_id"] for row in workshop.dropped]
    assert kept.isdisjoint(dropped) and kept | set(dropped) == set(pairs.captions["caption_id"])
    assert len(dropped) == len(set(dropped)) and all(set(row) == set(DROPPED) for row in workshop.dropped)
    if name == "alia":  # a caption that leaves nothing open has no variant
        assert "no_op" in {row["reason"] for row in workshop.dropped}


class Lazy(Editor):
    """Gives no image, or the very image that it got."""

    def __init__(self, gives) -> None:
        super().__init__()
        self.gives = gives

    def edit(self, sources, instructions, seeds):
        return [[self.gives(source) for _ in row] for source, row in zip(sources, seeds, strict=True)]


@pytest.mark.parametrize(
    ("gives", "reason"), [(lambda source: None, "editor_failed"), (lambda source: source.copy(), "no_op")]
)
def test_an_editor_that_does_nothing_costs_its_samples(gives, reason, pairs, encoder, tmp_path):
    rows, workshop = run(MAKERS["coco-cf"], pairs, encoder, tmp_path, editor=Lazy(gives))
    assert rows == [] and {row["reason"] for row in workshop.dropped} == {reason} and len(workshop.dropped) == 20


def test_negclip_swaps_words(made, pairs):
    rows = made("negclip")[0]
    assert 0 < len(rows) <= 5 * 20
    for row in rows:
        caption = caption_of(pairs, row)
        assert bare_caption(row["text"]) != bare_caption(caption)
        before, after = (Counter(re.findall(r"\w+", text.casefold())) for text in (caption, row["text"]))
        assert before == after
        assert row["text"][0].isupper() == caption[0].isupper()
    assert max(Counter(row["caption_id"] for row in rows).values()) > 1


@pytest.mark.parametrize("name", ["sugarcrepe", "tripletclip"])
def test_a_hard_negative_is_false_of_its_image(name, made, pairs):
    rows = made(name)[0]
    assert len({row["caption_id"] for row in rows}) == len(rows) > 10
    for row in rows:
        assert not holds(captions.parse(row["text"]), scene(pairs, row["image_id"]))
        if name == "tripletclip":
            assert holds(captions.parse(row["text"]), shown(row))


def test_a_rewrite_says_the_same(made, pairs):
    rows = made("laclip")[0]
    assert len(rows) == 20
    for row in rows:
        assert captions.parse(row["text"]) == facts_of(pairs, row)
        assert bare_caption(row["text"]) != bare_caption(caption_of(pairs, row))


@pytest.mark.parametrize("name", ["stablerep", "alia"])
def test_an_image_fits_its_caption(name, made, pairs):
    rows = made(name)[0]
    assert len({row["caption_id"] for row in rows}) == len(rows) > 5
    for row in rows:
        assert holds(facts_of(pairs, row), shown(row))
        if (
            name == "alia"
        ):  # what the caption leaves open has changed; where it leaves nothing open there is no variant
            assert shown(row) != scene(pairs, row["image_id"])


def test_candidates_are_chosen_by_the_retriever(made, encoder):
    """The nearest caption that differs; the cosine of each image with its row's text."""
    _, workshop, *_, folder = made("coco-cf")
    caption = workshop.captions[0]
    texts = ["a red star", caption.upper() + ".", "two blue boxes at night", "here we see a heart"]
    near = [float(encoder.embed_texts([text])[0] @ encoder.embed_texts([caption])[0]) for text in texts]
    best = max((score, text) for score, text in zip(near, texts, strict=True) if text != texts[1])[1]
    assert nearest_captions(workshop, [(0, texts)]) == [(0, best)]

    files = sorted(folder.glob("candidates/*/*.png"))[:5]
    rows = [files[:2], files[2:]]
    found = image_scores(workshop, rows, texts[:2])
    assert [len(scores) for scores in found] == [2, 3]
    for scores, some, text in zip(found, rows, texts, strict=False):
        for score, path in zip(scores, some, strict=True):
            image = encoder.embed_images([Image.open(path)])[0]
            assert score == pytest.approx(float(image @ encoder.embed_texts([text])[0]), abs=1e-5)


def test_alias_filters_take_out_what_left_its_caption():
    """A candidate must be nearer to its caption than to what any image is, and its caption among the nearest hundred."""
    rng = np.random.default_rng(0)
    generic = np.array([[0.0, 0.0, 1.0]], np.float32)
    candidates = np.array([[0.9, 0.1, 0.3], [0.3, 0.1, 0.9]], np.float32)
    own_caption = np.array([1.0, 0.0, 0.0], np.float32)
    others = rng.uniform(0.95, 1.0, (WITHIN + 5, 3)).astype(np.float32)  # all of them nearer to either candidate
    own = candidates @ own_caption
    assert is_variant(candidates, own, np.stack([own_caption]), generic).tolist() == [True, False]
    assert is_variant(candidates, own, np.stack([own_caption, *others[: WITHIN - 1]]), generic).tolist() == [
        True,
        False,
    ]
    assert not is_variant(candidates, own, np.stack([own_caption, *others[:WITHIN]]), generic).any()


def test_a_counterfactual_pair_is_a_pair_and_differs_in_a_noun(made, pairs):
    rows = made("coco-cf")[0]
    assert len({row["caption_id"] for row in rows}) == len(rows) > 10
    for row in rows:
        said, facts = captions.parse(row["text"]), facts_of(pairs, row)
        assert holds(said, shown(row))
        shapes = [
            (thing.shape, other.shape)
            for thing, other in ((said.first, facts.first), (said.second, facts.second))
            if thing
        ]
        assert sum(one != other for one, other in shapes) == 1


def test_a_broken_run_goes_on_where_it_was(pairs, encoder, made, tmp_path):
    whole, _, asked, drawn, _ = made("coco-cf")
    first, editor = Oracle(fail_after=25), Editor()
    with pytest.raises(RunStopped, match="out of credit"):
        run(MAKERS["coco-cf"], pairs, encoder, tmp_path, first, editor)
    assert first.calls == 25 and editor.made == 0
    second = Oracle()
    rows, _ = run(MAKERS["coco-cf"], pairs, encoder, tmp_path, second, editor)
    assert first.calls + second.calls == asked.calls and editor.made == drawn.made
    assert [(row["caption_id"], row["text"]) for row in rows] == [(row["caption_id"], row["text"]) for row in whole]


def test_a_useless_answer_costs_its_own_sample_only(pairs, encoder, made, tmp_path):
    """An empty answer, a refusal, the caption itself, one word: no sample; the caption stands for itself."""
    words = pairs.captions["caption"][:4]
    useless = dict(zip(words, ["", "I'm sorry, but I can't help with that.", words[2].upper(), "Circle"], strict=True))

    def instead(request) -> str | None:
        told = request["messages"][1]["content"][0]["text"]
        return next((said for caption, said in useless.items() if json.dumps(caption) in told), None)

    rows, workshop = run(MAKERS["laclip"], pairs, encoder, tmp_path, Oracle(instead=instead))
    lost = {
        caption_id
        for caption_id, text in zip(pairs.captions["caption_id"], pairs.captions["caption"], strict=True)
        if text in useless
    }
    assert {row["caption_id"] for row in rows} == {row["caption_id"] for row in made("laclip")[0]} - lost
    assert workshop.asked.llm == workshop.tried == 20
    assert {row["caption_id"] for row in workshop.dropped} == lost
    assert [row["reason"] for row in workshop.dropped] == ["llm_unparsed", "llm_refused", "no_op", "filtered"]


def test_an_llm_that_answers_in_batches_is_refused(pairs, encoder, tmp_path):
    with Journal(tmp_path / "journal.jsonl") as journal:
        chat = ChatModel(oracle.MODEL, journal=journal, provider=Oracle())
        chat.batches = object()
        with pytest.raises(UserError, match="leave it out"):
            Workshop(pairs, encoder, chat, Editor(), tmp_path)


@pytest.mark.slow
def test_bought_images_are_written_down_and_counted(pairs, encoder, tmp_path, monkeypatch):
    """Over LiteLLM to a server on loopback: a ceiling in dollars holds over several runs, and what was bought is not bought again."""
    monkeypatch.setenv("GEMINI_API_KEY", "planted-key-0123456789")
    server = ImageServer(lambda n: png())

    def draw(max_usd: float | None) -> list[dict]:
        editor = HostedEditor(MODELS["gemini"], base_url=server.base_url("gemini"), retries=SOON, timeout=60.0)
        maker, budget = MAKERS["stablerep"], Budget(max_usd)

        async def make(workshop: Workshop) -> list[dict[str, Any]]:
            async with workshop.open(draws=True):
                return await maker.make(workshop)

        with Journal(tmp_path / "journal.jsonl") as journal:
            chat = ChatModel(oracle.MODEL, journal=journal, provider=Oracle(), budget=budget)
            return asyncio.run(make(Workshop(pairs, encoder, chat, editor, tmp_path)))

    def bills() -> list[dict]:
        return [json.loads(line) for line in (tmp_path / "images.jsonl").read_text().splitlines()]

    try:
        for _ in range(2):  # the second run knows what the first has paid
            with pytest.raises(BudgetSpent, match="--max-usd 0.2"):
                draw(0.2)
            assert len(server.asked) == len(bills()) == 5 and 0.15 < sum(bill["dollars"] for bill in bills()) <= 0.2
        assert len(draw(None)) == 20
        assert len(server.asked) == len(bills()) == len(set(pairs.captions["caption"]))  # equal captions are one image
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", BASELINES)
def test_a_method_trains_on_what_it_made(name, made, pairs, clip_folder, tmp_path):
    """From random weights: on four pictures `world/base` has nothing left to lose."""
    method, data = BASELINES[name], None
    for package in method.needs:
        pytest.importorskip(package, reason=f"{name} needs {package}: pip install 'repair-hf[study]'")
    if method.parts:
        rows = {part: made(maker.name)[0] for part, maker in method.parts.items()}
        parts = {part: build(some, tmp_path / f"{part}.arrow", SAMPLES) for part, some in rows.items()}
        data = SampleRows(pairs, parts)
        assert data.counts == {part: len(some) for part, some in rows.items()}
    encoder = DualEncoder.from_pretrained(clip_folder, device="cpu")
    before = {key: value.detach().clone() for key, value in encoder.model.named_parameters()}
    config = RepairConfig(
        output_dir=str(tmp_path / "out"),
        cache_folder=str(tmp_path / "cache"),
        per_device_train_batch_size=4,
        max_steps=2,
        logging_steps=1,
        learning_rate=1e-4,
        use_cpu=True,
    )
    objective = method.objective(encoder) if method.objective else None
    train(encoder, pairs, None, config, data=data, objective=objective)
    lines = [
        line
        for line in json.loads((tmp_path / "out" / "trainer_state.json").read_text())["log_history"]
        if "loss" in line
    ]
    extra = {"simclr": {"loss_views"}, "stablerep": {"loss_images"}}.get(name, set())
    for line in lines:
        parts = {key for key in line if key.startswith("loss_")}
        assert parts == {"loss_global"} | extra
        assert line["loss"] == pytest.approx(sum(line[key] for key in parts), rel=1e-3) and 0.1 < line["loss"] < 20
    assert len(lines) == 2
    assert all(
        not value.equal(before[key]) for key, value in encoder.model.named_parameters() if "embeddings" not in key
    )
