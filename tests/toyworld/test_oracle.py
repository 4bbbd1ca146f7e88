"""The toy world's LLM judges and repairs by the scenes, names what it does not understand, and errs at its rates."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import random
import re

import numpy as np
import pytest
from PIL import Image

from repair_hf.llm.prompts import SHIPPED
from repair_hf.llm.provider import RejectedRequest
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.schemas import Fit, Verdict
from repair_hf.toyworld import captions, instructions, oracle, renderer, scenes
from repair_hf.toyworld.errors import EDITORS, LLMS, EditorErrors, LLMErrors, errors_of, name_of

THREE = scenes.Scene(scenes.Thing("circle", "red", 3, "small", "running"), None, None, "day")
TWO = scenes.Scene(scenes.Thing("circle", "red", 2, "small", "running"), None, None, "day")


def url(scene: scenes.Scene, size: int = 32) -> str:
    return data_url(renderer.to_png(renderer.render(scene, size=size)))


def data_url(file: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(file).decode()


def draw(seed: int) -> tuple[scenes.Scene, scenes.Scene, str]:
    """A scene, another one, and a true caption of the other one."""
    rng = random.Random(seed)
    scene, other = scenes.sample(rng), scenes.sample(rng)
    return scene, other, captions.write(other, rng)


def audit_caption(image: str, gt: str, fp: str, errors: LLMErrors = oracle.NEVER) -> str:
    blanks = {"query_image": image, "ground_truth_caption": gt, "false_positive_caption": fp}
    return oracle.answer(SHIPPED.chat("audit_i2t", **blanks), 0, errors)


@pytest.mark.parametrize("gt", [True, False])
@pytest.mark.parametrize("fp", [True, False])
def test_an_audit_says_what_is_true(gt, fp):
    texts = "three running circles" if gt else "two running circles", "a trio of tiny red balls" if fp else "two balls"
    verdict = Verdict.model_validate_json(audit_caption(url(THREE), *texts))
    assert (verdict.gt_valid, verdict.fp_too_similar) == (gt, fp)
    assert fp or verdict.fp_reason == "Count: the caption says 2, the image shows 3."
    pictures = {name: url(THREE if is_true else TWO) for name, is_true in (("gt", gt), ("fp", fp))}
    blanks = {"ground_truth_image": pictures["gt"], "false_positive_image": pictures["fp"]}
    messages = SHIPPED.chat("audit_t2i", query_caption="Three red circles by day", **blanks)
    verdict = Verdict.model_validate_json(oracle.answer(messages, 0))
    assert (verdict.gt_valid, verdict.fp_too_similar) == (gt, fp)


def test_what_it_does_not_understand_is_named():
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    asked = {
        "not a caption of the toy world": (url(THREE), 'red\nGround-truth caption: "two red balls"'),  # no label
        "carries no scene.*--llm": (data_url(file.getvalue()), "a ball"),
        "PNG pictures of the toy world only": ("https://example.com/cat.jpg", "a ball"),
    }
    for says, (image, fp) in asked.items():
        with pytest.raises(ValueError, match=says):
            audit_caption(image, "a circle", fp)
    texts = {
        "no label": "Which?",
        "False-positive image": 'Query caption: "a star"',
        "needs `False-positive caption:`": 'Edit instruction: "none"',
    }
    for says, text in texts.items():
        with pytest.raises(RejectedRequest, match=f"world/oracle does not accept .*{says}"):
            asyncio.run(oracle.provider()({"messages": [{"role": "user", "content": text}]}))


def verdicts(**rates) -> list[str]:
    """The audits of 200 failures; every other one should be rejected."""
    found = []
    for seed in range(200):
        scene, other, fp = draw(seed)
        gt = captions.write(scene, random.Random(seed))
        if seed % 2:
            gt, fp = (fp, gt) if seed % 4 == 1 else (gt, captions.write(scene, random.Random(-seed)))
        found.append(audit_caption(url(scene, 16), gt, fp, LLMErrors(**rates)))
    return found


def test_audits_err_at_their_two_rates_and_give_a_reason_for_what_they_say():
    right, said = ([Verdict.model_validate_json(text) for text in texts]
                   for texts in (verdicts(), verdicts(keeps_bad=0.2, rejects_good=0.4)))  # fmt: skip
    bad = [verdict.drop_reason is not None for verdict in right]
    kept = [verdict.drop_reason is None for verdict in said]
    pairs = list(zip(bad, kept, strict=True))
    assert 100 <= sum(bad) < 105  # a random caption is true now and then
    assert 0.12 < pairs.count((True, True)) / sum(bad) < 0.28
    wrong = [verdict.drop_reason for verdict, pair in zip(said, pairs, strict=True) if pair == (False, False)]
    assert 0.3 < len(wrong) / bad.count(False) < 0.5 and 0.15 < wrong.count("gt_invalid") / len(wrong) < 0.4
    for verdict in said:
        assert verdict.gt_valid == verdict.gt_reason.startswith("Everything")
        assert verdict.fp_too_similar == verdict.fp_reason.startswith("Everything")


def checks(**rates) -> list[Fit]:
    """What is said of 200 captions and pictures; every other caption is true."""
    said = []
    for seed in range(200):
        scene, _, other = draw(seed)
        caption = captions.write(scene, random.Random(seed)) if seed % 2 else other
        messages = SHIPPED.chat("check", checked_image=url(scene, 16), checked_caption=caption)
        said.append(Fit.model_validate_json(oracle.answer(messages, 0, LLMErrors(**rates))))
    return said


def test_a_check_is_wrong_at_a_rate_of_its_own():
    right, others, said = checks(), checks(keeps_bad=1, rejects_good=1), checks(misjudges=0.2)
    assert right == others and all(fit.fits for fit in right[1::2])
    assert sum(fit.fits for fit in right[::2]) < 5  # a random caption is true now and then
    wrong = sum(a.fits != b.fits for a, b in zip(right, said, strict=True))
    assert 0.12 < wrong / len(said) < 0.28
    assert all(fit.fits == fit.reason.startswith("Everything") for fit in said)


def test_answers_are_malformed_at_the_rate():
    texts, good = verdicts(malformed_rate=0.3), 0
    for text in texts:
        with contextlib.suppress(ValueError):
            good += bool(Verdict.model_validate_json(text))
    assert 0.62 < good / len(texts) < 0.78


def wrong_facts(ask, **rates) -> list[int]:
    """How many facts are wrong after an answer: there were two or more before an edit, and none before a rewording."""
    found, rng = [], random.Random(3)
    while len(found) < 60:
        scene, caption = scenes.sample(rng), captions.write(scenes.sample(rng), rng)
        if len(scenes.differences(captions.parse(caption), scene)) > 1:
            found.append(ask(scene, caption, LLMErrors(**rates)))
    return found


def instruct_caption(scene, caption, errors) -> int:
    messages = SHIPPED.chat("instruct_i2t", query_image=url(scene, 16), false_positive_caption=caption)
    instruction = json.loads(oracle.answer(messages, 0, errors))["edit_instruction"]
    return left(instructions.apply_instruction(caption, instruction, random.Random(0)), scene)


def instruct_image(scene, caption, errors) -> int:
    messages = SHIPPED.chat("instruct_t2i", query_caption=caption, false_positive_image=url(scene, 16))
    instruction = json.loads(oracle.answer(messages, 0, errors))["edit_instruction"]
    return left(caption, instructions.apply_image_instruction(scene, instruction))


def edit(scene, caption, errors) -> int:
    _, instruction = instructions.caption_instruction(caption, scene)
    blanks = dict(query_image=None, false_positive_caption=caption, edit_instruction=instruction)
    return left(written(SHIPPED.chat("edit_i2t", **blanks), errors), scene)


def reword(scene, caption, errors) -> int:
    caption = captions.write(scene, random.Random(caption))
    return left(written(SHIPPED.chat("rewrite", caption=caption), errors), scene)


def vary(scene, caption, errors) -> int:
    caption = captions.write(scene, random.Random(caption))
    messages = SHIPPED.chat("scene_change", source_image=url(scene, 16), caption=caption)
    instruction = written(messages, errors)
    return left(caption, instructions.apply_image_instruction(scene, instruction))


def written(messages, errors) -> str:
    return json.loads(oracle.answer(messages, 0, errors))["answer"]


def left(caption: str, scene: scenes.Scene) -> int:
    return len(scenes.differences(captions.parse(caption), scene))


@pytest.mark.parametrize("ask", [instruct_caption, instruct_image, edit, reword, vary])
def test_one_fact_is_wrong_after_a_mistake(ask):
    assert not any(wrong_facts(ask))
    for rate in ("missed", "extra"):
        always, some = (wrong_facts(ask, **{rate: share}) for share in (1.0, 0.3))
        assert np.mean([count > 0 for count in always]) > 0.8 and np.median(always) <= 2  # a command may hold several
        assert 0.15 < np.mean([count > 0 for count in some]) < 0.45
        assert all(count in (0, full) for count, full in zip(some, always, strict=True))  # the same mistakes, fewer


@pytest.mark.parametrize("template", ["hard_negative", "noun_swap"])
def test_a_missed_change_leaves_a_negative_true(template):
    caption = "two small red circles left of a blue star"
    messages = SHIPPED.chat(template, caption=caption)
    for errors, is_true in ((LLMErrors(), False), (LLMErrors(missed=1), True), (LLMErrors(extra=1), False)):
        said = written(messages, errors)
        assert (captions.parse(said) == captions.parse(caption)) == is_true and said != caption


# Ids with rates, and the rates of `world/erring` against the paper's figures


def test_an_id_holds_the_rates_and_a_name_holds_all_of_them():
    assert errors_of("world/oracle?missed=0.1&malformed_rate=1", LLMS) == LLMErrors(missed=0.1, malformed_rate=1)
    assert errors_of("world?drift=.5", EDITORS) == EditorErrors(drift=0.5)
    assert (name_of("world/oracle", LLMS), name_of("world", EDITORS)) == ("world/oracle", "world")
    assert name_of("world?smear=0.50&drift=0.2", EDITORS) == "world?drift=0.2&smear=0.5"
    for models in (LLMS, EDITORS):  # other constants make another model, with answers and candidates of its own
        name = name_of("world/erring", models)
        assert name.startswith("world/erring?") and name_of(name, models) == name
        assert errors_of(name, models) == models["world/erring"]


@pytest.mark.parametrize("query", ["drift=2", "drift=-1", "drift=nan", "drift=", "drift", "noise=0.1"])
def test_a_wrong_query_is_named(query):
    with pytest.raises(UserError, match=re.escape(f"`world?{query}`: ")):
        errors_of(f"world?{query}", EDITORS)


@pytest.mark.parametrize(("deserve", "slack"), [(0.32, 0.02), (0.365, 0.002), (0.41, 0.02)])
def test_audits_agree_with_people_as_in_the_paper(deserve, slack):
    """Precision and recall from the rates, where a share of the failures deserves to pass."""
    rates = errors_of("world/erring", LLMS)
    rightly, wrongly = deserve * (1 - rates.rejects_good), (1 - deserve) * rates.keeps_bad
    assert rightly / (rightly + wrongly) == pytest.approx(0.902, abs=slack)
    assert rightly / deserve == pytest.approx(0.839, abs=0.001)
