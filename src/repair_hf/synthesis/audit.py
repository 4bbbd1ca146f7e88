"""Audit: is a mined failure a real one? (Paper section 3.1, pre-edit quality control.)

A failure is real if its annotation holds (`gt_valid`) and its false positive is not a correct answer too
(`fp_too_similar`). One request asks both. The false positives of one image share its ground truth, so they can also be
audited in one request: image and rules are then sent, and paid for, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, create_model

from repair_hf.llm.client import AnswerError, ChatModel
from repair_hf.llm.ledger import FIRST_ATTEMPTS

MAX_TOKENS = 1024
MORE_TOKENS = 128  # for each further caption of a group


class Verdict(BaseModel):
    """The auditor's answer. Reasons come first: a model that writes them first decides better."""

    gt_reason: str
    gt_valid: bool
    fp_reason: str
    fp_too_similar: bool

    @property
    def drop_reason(self) -> str | None:
        """Why the failure is dropped; None if it is real."""
        if not self.gt_valid:
            return "gt_invalid"
        return "fp_too_similar" if self.fp_too_similar else None


async def audit(chat: ChatModel, direction: str, *, q: str, gt: str, fp: str) -> Verdict:
    """Audit one failure. `q`, `gt` and `fp` are captions, or images (`ImageURL`)."""
    if direction == "i2t":
        messages = chat.prompts.chat("audit_i2t", query_image=q, ground_truth_caption=gt, false_positive_caption=fp)
    else:
        messages = chat.prompts.chat("audit_t2i", query_caption=q, ground_truth_image=gt, false_positive_image=fp)
    verdict: Any = await chat.ask(messages, stage="audit", direction=direction, schema=Verdict, max_tokens=MAX_TOKENS)
    return verdict


async def audit_group(chat: ChatModel, *, q: str, gt: str, fps: Sequence[str]) -> list[Verdict] | None:
    """Audit all false-positive captions of one query image in one request, in their order.

    None if the answer is unusable; the caller then audits the captions one by one, so that one refused caption does
    not drop the others.
    """
    messages = chat.prompts.chat(
        "audit_i2t_grouped", query_image=q, ground_truth_caption=gt, false_positive_captions=list(fps)
    )
    try:
        answer: Any = await chat.ask(
            messages,
            stage="audit",
            direction="i2t",
            schema=group_verdict(len(fps)),
            max_tokens=MAX_TOKENS + MORE_TOKENS * (len(fps) - 1),
            attempts=FIRST_ATTEMPTS,  # then the captions are audited alone, which later runs need not pay for again
        )
    except AnswerError:
        return None
    said = answer.model_dump()
    shared = {"gt_reason": said["gt_reason"], "gt_valid": said["gt_valid"]}
    return [Verdict(**shared, **said[f"caption_{number}"]) for number in range(1, len(fps) + 1)]


class CaptionVerdict(BaseModel):
    """The auditor's answer on one caption of a group."""

    fp_reason: str
    fp_too_similar: bool


@cache
def group_verdict(count: int) -> type[BaseModel]:
    """The schema of an answer on `count` captions. Each has its own field, so none can be left out or swapped."""
    captions: Any = {f"caption_{number}": (CaptionVerdict, ...) for number in range(1, count + 1)}
    return create_model("GroupVerdict", gt_reason=(str, ...), gt_valid=(bool, ...), **captions)
