"""The toy world's LLM: a chat model that is always right (`world/oracle`), or errs at the rates of its id.

It gets the messages that any provider gets: a prompt, labelled captions, images as data URLs. It reads scenes from PNG
metadata and facts from captions, so it needs no weights and costs nothing. It answers as a language model would: the
audit's verdict, an edit instruction, an edited caption, whether an edit fits.

Errors are drawn from what is shown and the seed: a question always gets the same answer, however its prompt is worded.
Their rates are in `errors`.
"""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from repair_hf.llm.provider import Provider, RejectedRequest, Reply
from repair_hf.toyworld import captions, instructions, renderer, variations
from repair_hf.toyworld.errors import CRITERION_1, LLMS, LLMErrors, errors_of
from repair_hf.toyworld.scenes import Difference, Scene, Thing, differences, satisfy, true_facts

MODEL = "world/oracle"
NEVER = LLMErrors()
IMAGE_TOKENS = 258  # Gemini's price of a small picture

_LABEL = re.compile(
    r"((?:Query|Ground-truth|False-positive) (?:image|caption)(?: \d+)?|Edit instruction|Caption to rewrite"
    r"|Caption to make false|Caption whose noun to replace|Image to vary|Caption to keep true"
    r'|Caption to contrast|Preferred kind|Image to check|Caption to check):(?: (".*"))?'
)
_DATA_URL = "data:image/png;base64,"
_VARIATIONS = {
    "Caption to rewrite": variations.reword,
    "Caption to make false": variations.falsify,
    "Caption whose noun to replace": variations.swap_noun,
}


def answer(messages: list[dict], seed: int, errors: LLMErrors = NEVER) -> str:
    """Answer messages.

    Args:
        messages: OpenAI chat messages, with captions and images labelled as in the prompts of `repair_hf.llm`.
        seed: Seed of the draws, such as an edited caption's wording.
        errors: Rates of errors.

    Raises:
        ValueError: If the oracle does not understand the messages.
    """
    shown = _read(messages)
    job = next(iter(shown), None)
    key = repr((len(messages), list(shown.items()), seed))  # a complaint makes the messages more
    rng, slips = random.Random(key), random.Random(f"{key}/slips")  # what is right does not depend on the rates
    mistake = _mistake(errors, slips)
    if job in _VARIATIONS:
        return _written(_vary(job, shown[job], mistake, rng))
    if "Caption to contrast" in shown:
        return _contrast(shown["Caption to contrast"], shown["Preferred kind"], mistake, rng)
    if job == "Image to vary":
        facts = captions.parse(shown["Caption to keep true"])
        goal = variations.change_scene(shown["Caption to keep true"], shown[job], rng)
        goal = variations.slip(goal, true_facts(facts, goal), rng) if mistake else goal
        return _written(instructions.scene_instruction(shown[job], goal))
    if "Edit instruction" in shown:
        return _written(_edit(shown["False-positive caption"], shown["Edit instruction"], mistake, rng))
    if job == "Image to check":
        reply = _check(_wrong(shown["Caption to check"], shown[job]), errors, slips)
    elif "Ground-truth caption" in shown or "Ground-truth image" in shown:
        reply = _audit(shown, errors, slips)
    else:
        reply = _instruct(shown, mistake, errors, slips)
    return _broken(reply, rng) if slips.random() < errors.malformed_rate else json.dumps(reply)


def answer_to(request: Mapping[str, Any], errors: LLMErrors = NEVER) -> str:
    """Return the answer to a request of OpenAI's protocol, whose seed may be missing."""
    return answer(request["messages"], request.get("seed", 0), errors)


def count_tokens(said: str | list[dict]) -> int:
    """Estimate the tokens of a text or of messages: a quarter of the characters, and a flat rate for each image."""
    if isinstance(said, str):
        return len(said) // 4 + 1
    parts = _parts([message["content"] for message in said])
    return sum(IMAGE_TOKENS if part["type"] == "image_url" else count_tokens(part["text"]) for part in parts)


def provider(id: str = MODEL) -> Provider:
    """Return the LLM of an id for `Asker(id, ledger, provider=...)`. Without LiteLLM, it saves milliseconds a call."""
    errors = errors_of(id, LLMS)

    async def reply(request: Mapping[str, Any]) -> Reply:
        try:
            text = answer_to(request, errors)
        except ValueError as error:
            raise RejectedRequest(f"{id} does not accept the request: {error}") from error
        return Reply(text, "stop", count_tokens(request["messages"]), count_tokens(text), 0.0, id)

    return reply


class _Shown(dict):
    """Content of the user message by label."""

    def __missing__(self, label: str) -> None:
        raise ValueError(f"The oracle needs `{label}:` in the user message; it finds {sorted(self) or 'no label'}.")


def _read(messages: list[dict]) -> _Shown:
    """Read captions from the line of their label, and images from the part after it."""
    shown, waiting = _Shown(), "something without a label"
    questions = [message["content"] for message in messages if message["role"] == "user"]
    for part in _parts(questions[:1]):  # later ones complain about an answer
        if part["type"] == "image_url":
            shown[waiting] = _scene(part["image_url"]["url"])
            continue
        for line in part["text"].split("\n"):
            if label := _LABEL.fullmatch(line):
                waiting = label[1]
                if label[2] is not None:
                    shown[waiting] = json.loads(label[2])
    return shown


def _parts(contents: list[str | list[dict]]) -> list[dict]:
    """Return the parts of several contents; a plain string is one part."""
    whole = ([{"type": "text", "text": content}] if isinstance(content, str) else content for content in contents)
    return [part for content in whole for part in content]


@lru_cache(1024)
def _scene(url: str) -> Scene:
    if not url.startswith(_DATA_URL):
        raise ValueError(
            f"The oracle reads PNG pictures of the toy world only, sent as data URLs; it got {url[:40]!r}."
        )
    return renderer.read_scene(base64.b64decode(url[len(_DATA_URL) :]))


@lru_cache(4096)
def _wrong(caption: str, scene: Scene) -> tuple[Difference, ...]:
    return differences(captions.parse(caption), scene)


def _mistake(errors: LLMErrors, slips: random.Random) -> str | None:
    """Draw what goes wrong in an instruction or a caption: `missed`, `extra`, or nothing."""
    at = slips.random()
    if at < errors.missed:
        return "missed"
    return "extra" if at < errors.missed + errors.extra else None


def _written(text: str) -> str:
    return json.dumps({"answer": text})


def _vary(job: str, caption: str, mistake: str | None, rng: random.Random) -> str:
    """Answer a prompt of a baseline. A change that is missed leaves the caption true; one too many makes it false."""
    vary = _VARIATIONS[job]
    if mistake == "missed" and vary is not variations.reword:
        return variations.reword(caption, rng)
    varied = vary(caption, rng)
    return variations.falsify(varied, rng) if mistake else varied


def _contrast(caption: str, kind: str, mistake: str | None, rng: random.Random) -> str:
    """Change one detail of a caption. A change that is missed leaves it true; one too many changes two details."""
    kind, changed = variations.contrast(caption, kind, rng)
    if mistake is not None:
        changed = variations.reword(caption, rng) if mistake == "missed" else variations.falsify(changed, rng)
    return json.dumps({"kind": kind, "answer": changed})


def _edit(caption: str, instruction: str, mistake: str | None, rng: random.Random) -> str:
    """Edit a caption. Of several changes, one may be missed; a fact of the edited caption may be made wrong."""
    shorter = instructions.skip_command(instruction, rng) if mistake == "missed" else None
    edited = instructions.apply_instruction(caption, shorter or instruction, rng)
    return variations.falsify(edited, rng) if mistake and shorter is None else edited


def _audit(shown: _Shown, errors: LLMErrors, slips: random.Random) -> dict[str, Any]:
    """Audit one failure, or all captions of one image.

    A wrong verdict on the annotation holds for all captions, any other for a single one.
    """
    if "Query image" in shown:
        gt = _wrong(shown["Ground-truth caption"], shown["Query image"])
    else:
        gt = _wrong(shown["Query caption"], shown["Ground-truth image"])
    rejects_all = errors.rejects_good * CRITERION_1
    rejects_one = (errors.rejects_good - rejects_all) / (1 - rejects_all)
    gt_valid = (not gt) != (slips.random() < (errors.keeps_bad if gt else rejects_all))

    def verdict(fp: tuple[Difference, ...]) -> dict[str, Any]:
        similar = (not fp) != (slips.random() < (rejects_one if fp else errors.keeps_bad))
        similar = similar and not (gt and gt_valid)
        return {"fp_reason": _reason(fp, similar), "fp_too_similar": similar}

    reply = {"gt_reason": _reason(gt, gt_valid), "gt_valid": gt_valid}
    if "Query caption" in shown:
        return reply | verdict(_wrong(shown["Query caption"], shown["False-positive image"]))
    return reply | verdict(_wrong(shown["False-positive caption"], shown["Query image"]))


def _check(wrong: tuple[Difference, ...], errors: LLMErrors, slips: random.Random) -> dict[str, Any]:
    fits = (not wrong) != (slips.random() < errors.misjudges)
    return {"reason": _reason(wrong, fits), "fits": fits}


def _reason(wrong: tuple[Difference, ...], holds: bool) -> str:
    """Return the reason for calling a caption true (`holds`) or not."""
    if holds:
        return "Everything that the caption states can be seen."
    if not wrong:
        return "The wording is loose."
    said, shown = (
        captions.describe(fact) if isinstance(fact, Thing) else fact for fact in (wrong[0].said, wrong[0].shown)
    )
    shown = "nothing of the kind" if shown is None else shown
    return f"{wrong[0].kind}: the caption says {said}, the image shows {shown}."


def _instruct(shown: _Shown, mistake: str | None, errors: LLMErrors, slips: random.Random) -> dict[str, Any]:
    if "Query caption" in shown:
        facts, scene = captions.parse(shown["Query caption"]), shown["False-positive image"]
        goal = satisfy(facts, scene)
        if mistake == "missed":
            goal = variations.miss(scene, goal, slips)
        elif mistake:
            goal = variations.slip(goal, true_facts(facts, scene), slips)
        types = instructions.image_errors(scene, goal)
        instruction = instructions.scene_instruction(scene, goal) if types else None
        return {"error_types": types, "edit_instruction": instruction}
    caption, scene = shown["False-positive caption"], shown["Query image"]
    if _wrong(caption, scene):
        facts = captions.parse(caption)
        if mistake == "missed":  # the scene as the LLM sees it: in one fact more, the caption seems right
            scene = variations.miss(satisfy(facts, scene), scene, slips)
        elif mistake:
            scene = variations.slip(scene, true_facts(facts, scene), slips)
    elif slips.random() < errors.invents:
        word = caption.rstrip(".").split()[-1]  # a wrong verdict let a true caption through, so a fault is invented
        fault = f"The wording is loose. Therefore, replace '{word}' with '{word}'."
        return {"error_types": ["Attribute"], "edit_instruction": fault}
    types, instruction = instructions.caption_instruction(caption, scene)
    return {"error_types": types, "edit_instruction": instruction}


def _broken(reply: dict, rng: random.Random) -> str:
    """Break an answer as models do: cut off, prose instead of JSON, or wrong types."""
    whole = json.dumps(reply)
    prose = "I have compared the two, and my answer stands above."
    return rng.choice([whole[: len(whole) // 2], prose, json.dumps({key: [value] for key, value in reply.items()})])
