"""A provider that fails at random: nothing is lost or paid twice, and the records are as without faults.

Real HTTP, in the shape of OpenAI's protocol and of Gemini's; the toy world's oracle answers behind the faults.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path

import pytest
from datasets import concatenate_datasets
from ledgers import answers, ledger_in
from provider_faults import BOTH, ROWS
from provider_server import MODELS, ProviderServer, Question, Wire
from small_world import World

from repair_hf.llm.asker import Asker
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.paid_model import Retries
from repair_hf.toyworld import oracle

FAULT_RATE = 0.1
LASTING_RATE = 0.04  # of the audits: refused, or malformed however often they are asked


class Faulty:
    """The oracle, which fails by a draw from what is asked and how often it was asked before: the same in every run.

    `answered` counts whole answers, each of which costs money; `dropped` gives the reason of audits without a verdict.
    """

    def __init__(self) -> None:
        self.answered, self.faults, self.dropped = Counter(), Counter(), {}
        self._seen, self._useless, self._lock = Counter(), set(), threading.Lock()

    def __call__(self, question: Question) -> str | Wire:
        name = json.dumps(question.body, sort_keys=True)
        first = json.dumps(question.messages[:2])
        text = oracle.answer(question.messages, question.seed)
        with self._lock:
            self._seen[name] += 1
            fault = self._fault(f"{first}/{self._seen[name]}/{question.seed}", first, text)
            self.faults[fault] += 1
            if fault not in UNANSWERED:
                self.answered[name] += 1
        return text if fault == "none" else ALL[fault](question.shape, text)

    def _fault(self, draw: str, first: str, text: str) -> str:
        rng, is_edit = random.Random(draw), text.startswith('{"answer"')
        lasting = random.Random(first)
        if "gt_valid" in text and lasting.random() < LASTING_RATE:
            reason, names = lasting.choice(
                [("llm_refused", sorted(REFUSED)), ("llm_unparsed", ["values of wrong types"])]
            )
            self.dropped[first] = reason
            return lasting.choice(names)
        if rng.random() >= FAULT_RATE:
            return "none"
        # The second draw of an edited caption would be another caption.
        fault = rng.choice(sorted(UNANSWERED if is_edit else UNANSWERED | UNUSABLE | of("used")))
        if fault in ONCE | UNUSABLE:
            if first in self._useless:  # twice would be the row's end
                return "none"
            self._useless.add(first)
        return fault


def of(*kinds: str) -> dict:
    """Return the faults of some kinds that both shapes have, and that take no time."""
    return {row.sent: row.wire for row in ROWS if row.then in kinds and row.shapes == BOTH and "--" not in row.sent}


ONCE, UNUSABLE, REFUSED = of("once more"), of("asked again"), of("refused")
UNANSWERED = of("retried", "all wait") | ONCE
ALL = UNANSWERED | UNUSABLE | of("used") | REFUSED


def synthesize(world: World, folder: Path, model: str, **how) -> list[list[dict]]:
    """Records and dropped failures, without images."""
    with ledger_in(folder) as ledger:
        options = RequestOptions(concurrency=8)
        asker = Asker(model, ledger, options=options, retries=Retries(first_wait=0.01), **how)
        saved = world.synthesize(asker, folder)
    return [[{k: v for k, v in row.items() if not k.endswith("_image")} for row in rows] for rows in saved]


def triplet(row: dict) -> tuple[str, str, str]:
    return row["direction"], row["q_id"], row["fp_id"]


def asked(row: dict) -> tuple[str, str, str]:
    """What makes the question of a failure: captions of the same words are one question."""
    return row["direction"], row["q_text"] or row["q_id"], row["fp_text"] or row["fp_id"]


def agree(before: list[dict], after: list[dict]) -> None:
    """The same but for the last digits of the cosines, which depend on what else was embedded in one batch."""
    cosines = [[row.pop("edit_similarity", 0.0), *row.pop("candidate_similarities", [])] for row in [*before, *after]]
    assert before == after
    for one, other in zip(cosines[: len(before)], cosines[len(before) :], strict=True):
        assert one == pytest.approx(other, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "failures"),
    [("openai", 30), ("gemini", 30), ("openai", 2000)],
)
def test_records_are_as_without_faults(shape, failures, tmp_path, encoder, monkeypatch):
    world = World.build(tmp_path / "world", encoder, min(failures // 5, 250), d_i2t=5)
    world = world._replace(failures=concatenate_datasets([world.of(way, failures // 2) for way in ("t2i", "i2t")]))
    quiet = synthesize(world, tmp_path / "quiet", MODELS[shape], provider=oracle.provider())
    provider = Faulty()
    with ProviderServer(provider) as server:
        disturbed = synthesize(world, tmp_path / "disturbed", MODELS[shape], base_url=server.url(shape))

    assert len(world.failures) == len(quiet[0]) + len(quiet[1])
    lost = {triplet(row): row for row in disturbed[1] if row["reason"] in ("llm_refused", "llm_unparsed")}
    for before, after in zip(quiet, disturbed, strict=True):
        triplets = [triplet(row) for row in after]
        assert len(triplets) == len(set(triplets))
        agree(*([row for row in rows if triplet(row) not in lost] for rows in (before, after)))
    questions = {asked(row): row["reason"] for row in lost.values()}
    assert Counter(questions.values()) == Counter(provider.dropped.values())
    assert all(row["detail"] for row in lost.values())
    assert set(provider.answered.values()) == {1}  # nothing is paid for twice
    assert answers(tmp_path / "disturbed") == len(provider.answered)  # nothing that was paid for is lost
    assert provider.faults.total() - provider.faults["none"] > 0.05 * provider.faults.total()
    if failures == 2000:
        assert set(provider.faults) == {"none", *ALL}
        assert set(provider.dropped.values()) == {"llm_refused", "llm_unparsed"}
