"""The audit of one failure, and of all false positives of an image at once: the same verdicts."""

from __future__ import annotations

import asyncio
import base64
import json
import random

import pytest

from repair_hf.llm.answers import response_format
from repair_hf.llm.client import ChatModel, RefusedAnswer, UnparsedAnswer
from repair_hf.llm.ledger import Ledger, Reply
from repair_hf.llm.prompts import SHIPPED
from repair_hf.synthesis.audit import Verdict, audit, audit_group, group_verdict
from repair_hf.toyworld import captions, oracle, renderer, scenes
from repair_hf.toyworld.errors import LLMErrors

SCENE = scenes.Scene(scenes.Thing("circle", "red", 3, "small", "running"), None, None, "day")
FPS = {
    "three red circles": True,
    "two red circles": False,
    "a trio of tiny red balls": True,
    "three blue circles": False,
    "three red balls at night": False,
}  # caption -> whether it is too similar

GROUP = {"gt_reason": "r", "gt_valid": True, "caption_1": {"fp_reason": "a", "fp_too_similar": False},
         "caption_2": {"fp_reason": "b", "fp_too_similar": True}}  # fmt: skip


def url(scene: scenes.Scene) -> str:
    return "data:image/png;base64," + base64.b64encode(renderer.to_png(renderer.render(scene, size=16))).decode()


@pytest.fixture
def ask(tmp_path):
    """Runs a stage against the oracle, or against a provider that gives these texts in their order."""

    def run(stage, *args, texts: list[str] | None = None, finish: str = "stop", asked: list | None = None, **kwargs):
        replies = iter(texts or [])

        async def provider(request):
            if asked is not None:
                asked.append(request)
            return await oracle.provider()(request) if texts is None else Reply(next(replies), finish, 1, 1, 0.0, "m")

        async def main():
            with Ledger(tmp_path / f"{random.random()}.sqlite") as ledger:
                return await stage(ChatModel(oracle.MODEL, ledger=ledger, provider=provider), *args, **kwargs)

        return asyncio.run(main())

    return run


def test_a_group_gets_the_verdicts_that_each_would_get_alone(ask):
    q, gt, asked = url(SCENE), "three running circles", []
    together = ask(audit_group, q=q, gt=gt, fps=list(FPS), asked=asked)
    assert together == [ask(audit, "i2t", q=q, gt=gt, fp=fp) for fp in FPS]
    assert [verdict.fp_too_similar for verdict in together] == list(FPS.values())
    assert len(asked) == 1
    assert json.dumps(asked[0]["messages"]).count("image_url") == 2  # the part, and the address in it
    verdicts = ask(audit_group, q=url(SCENE), gt="three blue circles", fps=list(FPS))
    assert {verdict.drop_reason for verdict in verdicts} == {"gt_invalid"}


def test_every_caption_has_a_place_of_its_own_in_the_answer():
    shape = response_format(group_verdict(3))["json_schema"]["schema"]
    assert shape["required"] == ["gt_reason", "gt_valid", "caption_1", "caption_2", "caption_3"]
    assert group_verdict(2).model_validate_json(json.dumps(GROUP)).model_dump() == GROUP
    assert group_verdict(2) is group_verdict(2)


WRONG = {
    "one left out": {name: value for name, value in GROUP.items() if name != "caption_2"},
    "a list": {"gt_reason": "r", "gt_valid": True, "captions": [GROUP["caption_1"], GROUP["caption_2"]]},
    "yes for true": GROUP | {"caption_2": {"fp_reason": "b", "fp_too_similar": "yes"}},
    "no reason": GROUP | {"caption_1": {"fp_too_similar": True}},
    "no verdict on the ground truth": {name: value for name, value in GROUP.items() if name != "gt_valid"},
    "another's answer": {"gt_reason": "r", "gt_valid": True, "fp_reason": "r", "fp_too_similar": False},
}


@pytest.mark.parametrize("what", WRONG)
def test_an_answer_that_lacks_a_verdict_gives_none_at_all(ask, what):
    text = json.dumps(WRONG[what])
    assert ask(audit_group, q=url(SCENE), gt="g", fps=["a", "b"], texts=[text, text]) is None
    verdicts = ask(audit_group, q=url(SCENE), gt="g", fps=["a", "b"], texts=[text, json.dumps(GROUP)])
    assert verdicts[1] == Verdict(gt_reason="r", gt_valid=True, fp_reason="b", fp_too_similar=True)


def test_a_refused_group_is_left_to_single_audits(ask):
    assert ask(audit_group, q=url(SCENE), gt="g", fps=["a", "b"], texts=["No."], finish="refusal") is None
    with pytest.raises(RefusedAnswer):
        ask(audit, "i2t", q=url(SCENE), gt="g", fp="a", texts=["No."], finish="refusal")
    with pytest.raises(UnparsedAnswer):
        ask(audit, "i2t", q=url(SCENE), gt="g", fp="a", texts=["Yes.", "Yes."])


def test_noise_turns_single_verdicts_of_a_group():
    rng, right, noisy = random.Random(0), [], []
    for _ in range(60):
        scene = scenes.sample(rng)
        shown = {"query_image": url(scene), "ground_truth_caption": captions.write(scene, rng)}
        shown["false_positive_captions"] = [captions.write(scenes.sample(rng), rng) for _ in range(5)]
        messages = SHIPPED.chat("audit_i2t_grouped", **shown)
        for found, rate in ((right, 0.0), (noisy, 0.3)):
            said = json.loads(oracle.answer(messages, 0, LLMErrors(keeps_bad=rate, rejects_good=rate)))
            said = said if said["gt_valid"] else json.loads(oracle.answer(messages, 0))  # a verdict on all captions
            found += [said[f"caption_{number}"]["fp_too_similar"] for number in range(1, 6)]
    turned = sum(a != b for a, b in zip(right, noisy, strict=True))
    assert 0.12 < turned / len(right) < 0.35  # a quarter of the errors is about the annotation
