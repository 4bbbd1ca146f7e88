"""What several tests of this room ask, and how the answer must look."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from repair_hf.llm.failures import Retries

QUESTION = [{"role": "user", "content": "Does the caption fit? Reply with one JSON object."}]
GOOD = '{"valid": true, "reason": "it fits"}'
QUICK = Retries(attempts=3, first_wait=0.01)


class Verdict(BaseModel):
    model_config = ConfigDict(strict=True)

    valid: bool
    reason: str
