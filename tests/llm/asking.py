"""What several tests of this room ask, and how the answer must look."""

from provider_server import Wire, said
from pydantic import BaseModel, ConfigDict

from repair_hf.llm.sending import Retries

QUESTION = [{"role": "user", "content": "Does the caption fit? Reply with one JSON object."}]
GOOD = '{"valid": true, "reason": "it fits"}'
QUICK = Retries(attempts=3, first_wait=0.01)
PRICED = "openai/gpt-4o-mini"
IN, OUT = 0.15e-6, 0.6e-6  # its list price per token


class Verdict(BaseModel):
    model_config = ConfigDict(strict=True)

    valid: bool
    reason: str


def texts(first: int, last: int) -> list[list[dict]]:
    """Questions that differ in their number."""
    return [[{"role": "user", "content": f"question {number}"}] for number in range(first, last)]


def billed(**usage: int) -> Wire:
    """A good answer that is billed in another way; without arguments, not at all."""
    body = said("openai", "yes")
    body["usage"] = body["usage"] | usage if usage else None
    return Wire(body=body)
