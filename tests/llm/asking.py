"""What several tests of this room ask, and how the answer must look."""

from provider_server import Wire, said
from pydantic import BaseModel, ConfigDict

from repair_hf.llm.paid_model import Retries

QUESTION = [{"role": "user", "content": "Does the caption fit? Reply with one JSON object."}]
GOOD = '{"valid": true, "reason": "it fits"}'
QUICK = Retries(attempts=3, first_wait=0.01, longest_wait=0.02)
MODELS = {"openai": "openai/gpt-4o-mini", "gemini": "gemini/gemini-2.5-flash"}
PRICED = MODELS["openai"]
IN, OUT = 0.15e-6, 0.6e-6  # its list price per token
BILLS = {"openai": 1000 * IN + 100 * OUT, "gemini": 1000 * 0.3e-6 + 100 * 2.5e-6}  # of an answer of the server


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
