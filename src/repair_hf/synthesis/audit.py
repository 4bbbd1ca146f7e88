"""Audit: is a mined failure a real one? (Paper section 3.1, pre-edit quality control.)

In:  (q, gt, fp) of one failure: captions as text, images as data URLs; or all false-positive captions of one query image.
Out: a `Verdict` per failure. A failure goes on if its annotation holds (`gt_valid`) and its false positive is no correct answer itself
     (not `fp_too_similar`).

One call per failure asks both criteria. The false positives of one image share its ground truth, so that they can also be audited in
one call: the image and the rules are then sent, and paid for, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pydantic import BaseModel, ConfigDict, create_model

from repair_hf.llm import prompts
from repair_hf.llm.client import AnswerError, ChatModel

MAX_TOKENS = 1024
MORE_TOKENS = 128  # for each further caption of a group


class Verdict(BaseModel):
    """What the auditor says. The reasons come first: a model that writes them first decides better."""

    model_config = ConfigDict(strict=True, frozen=True)  # "yes" or 1 is not a verdict

    gt_reason: str
    gt_valid: bool
    fp_reason: str
    fp_too_similar: bool

    @property
    def drop_reason(self) -> str | None:
        """Why the failure is not repaired; None if it is a real one."""
        if not self.gt_valid:
            return "gt_invalid"
        return "fp_too_similar" if self.fp_too_similar else None


async def audit(chat: ChatModel, direction: str, *, q: str, gt: str, fp: str) -> Verdict:
    """Ask for the verdict on one failure."""
    if direction == "i2t":
        messages = prompts.chat("audit_i2t", query_image=q, ground_truth_caption=gt, false_positive_caption=fp)
    else:
        messages = prompts.chat("audit_t2i", query_caption=q, ground_truth_image=gt, false_positive_image=fp)
    return await chat.ask(messages, stage="audit", direction=direction, schema=Verdict, max_tokens=MAX_TOKENS)


async def audit_group(chat: ChatModel, *, q: str, gt: str, fps: Sequence[str]) -> list[Verdict] | None:
    """Ask for the verdicts on all false-positive captions of one query image at once.

    Returns:
        One verdict per caption, in their order. None if the answer cannot be used; the captions are to be audited one by one
        then, so that one of them which a model refuses or stumbles over does not cost the others.
    """
    messages = prompts.chat(
        "audit_i2t_grouped", query_image=q, ground_truth_caption=gt, false_positive_captions=list(fps)
    )
    try:
        answer = await chat.ask(
            messages,
            stage="audit",
            direction="i2t",
            schema=group_verdict(len(fps)),
            max_tokens=MAX_TOKENS + MORE_TOKENS * (len(fps) - 1),
        )
    except AnswerError:
        return None
    said = answer.model_dump()
    shared = {"gt_reason": said["gt_reason"], "gt_valid": said["gt_valid"]}
    return [Verdict(**shared, **said[_name(number)]) for number in range(1, len(fps) + 1)]


class CaptionVerdict(BaseModel):
    """What the auditor says of one caption out of a group."""

    model_config = ConfigDict(strict=True, frozen=True)

    fp_reason: str
    fp_too_similar: bool


@cache
def group_verdict(count: int) -> type[BaseModel]:
    """The form of an answer on so many captions: each has a field of its own, so none can be left out or take another's place."""
    captions = {_name(number): (CaptionVerdict, ...) for number in range(1, count + 1)}
    config = ConfigDict(strict=True, frozen=True)
    return create_model("GroupVerdict", __config__=config, gt_reason=(str, ...), gt_valid=(bool, ...), **captions)


def _name(number: int) -> str:
    return f"caption_{number}"
