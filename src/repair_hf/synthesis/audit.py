"""Audit: is a mined failure a real one? (Paper section 3.1, pre-edit quality control.)

In:  (q, gt, fp) of one failure: captions as text, images as data URLs.
Out: a `Verdict` from one call that asks both criteria. A failure goes on if its annotation holds (`gt_valid`) and its false positive is
     no correct answer itself (not `fp_too_similar`).
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from repair_hf.llm.client import ChatModel
from repair_hf.synthesis import prompts


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
    return await chat.ask(messages, stage="audit", direction=direction, schema=Verdict)
