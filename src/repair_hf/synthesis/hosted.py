"""Edit images with a provider's model, over LiteLLM.

Every candidate is a request of its own: few providers make several images at once, and none takes a seed. Requests go
through `llm.sending`, as the LLM's do, but are counted apart: the two have different providers.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any

from PIL import Image

from repair_hf.llm.calls import without_usage
from repair_hf.llm.cost import image_bill, image_prices, price_per_image
from repair_hf.llm.errors import Blocked, ProviderError
from repair_hf.llm.ledger import Ledger, Reply
from repair_hf.llm.loading import find_provider, key_names, load_litellm
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.prompts import SHIPPED, Prompts, draws
from repair_hf.llm.provider import read_response, response_of
from repair_hf.llm.reader import Tokens, parse_body
from repair_hf.llm.sending import Retries, Sender
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import printable, use_keys, without_secrets
from repair_hf.synthesis.sources import UnreadableImage, open_picture

# For these LiteLLM gives the URL of an image, which may point anywhere; other providers send the image itself.
_SEND_ADDRESSES = ("black_forest_labs", "fal_ai", "recraft")
NO_IMAGE = "no image:"  # begins the finish of an answer without one, unless a filter is its reason
_ADDRESS = "the address of an image"

CONCURRENCY = 8  # a request takes over ten seconds; new accounts may make some tens of images a minute
# Assumed tokens of an image before the first bill: the most that providers make and take.
IMAGE_TOKENS_OUT, TOKENS_IN = 6_300, 8_000


class HostedEditor:
    """An image editor at a provider, such as `gemini/gemini-2.5-flash-image` or `openai/gpt-image-1`.

    Use it in one event loop at a time. Images are sent and kept at no more than the area of a square of side `size`.

    Raises:
        UserError: If the model id names no provider that LiteLLM knows, or one whose images do not come with its
            answers.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        size: int = 512,
        options: RequestOptions | None = None,
        retries: Retries | None = None,
        prompts: Prompts = SHIPPED,
    ) -> None:
        _, provider = find_provider(model)
        if provider in _SEND_ADDRESSES:
            raise UserError(
                f"--editor {model}: {provider} sends {_ADDRESS}, which is not followed. Give one that sends the "
                "image, such as gemini/gemini-2.5-flash-image, or a diffusers id."
            )
        use_keys(key_names(model))
        self.model, self.base_url, self.size = model, base_url, size
        self.id, self.prompts = f"{model}?size={size}{prompts.mark}", prompts
        self.options, self._retries = options or RequestOptions(concurrency=CONCURRENCY), retries

    def sender(self, ledger: Ledger) -> Sender:
        """Return what sends the requests of a run; see `Sender` for errors."""
        has_price = bool(self.price_bound)
        return Sender(self.model, ledger, self.options, self._retries, has_price=has_price)

    async def request(self, source: bytes, instruction: str) -> Callable[[], Awaitable[Reply]]:
        """Prepare a request for one edited image, or for a new one (`Drawing`); call the result to send it.

        The reply's text is the image file in base 64, or empty; `finish` then gives the reason.

        Raises:
            UnreadableImage: If the source cannot be opened.
        """
        image = None if draws(instruction) else await asyncio.to_thread(self._resized, source)
        prompt = self.prompts.image(instruction)
        return lambda: self._send(image, prompt)

    def opened(self, reply: Reply) -> Image.Image | None:
        """The picture in a reply, no larger than `size`; None if there is none."""
        if not reply.text:
            return None
        try:
            picture = open_picture(base64.b64decode(reply.text))
        except (UnreadableImage, ValueError):  # the latter is of characters that base 64 lacks
            return None
        return self._shrunk(picture)

    async def _send(self, image: bytes | None, prompt: str) -> Reply:
        litellm = load_litellm()
        # No more arguments: LiteLLM sends those it does not know to the provider. One attempt is its default here.
        request = {"model": self.model, "prompt": prompt, "api_base": self.base_url, "timeout": self.options.timeout}
        call = litellm.aimage_edit(image=image, **request) if image else litellm.aimage_generation(**request)
        try:
            response, body = await response_of(call, self.model, self.options.timeout)
            return _reply(parse_body(body) or body, self.model, response)
        except Blocked as error:
            return Reply("", f"content_filter: {error}", 0, 0, 0.0, self.model)

    async def read(self, body: bytes) -> Reply:
        """Read a body that a killed process has received."""
        return _reply(parse_body(body) or body, self.model)

    def _resized(self, source: bytes) -> bytes:
        """Encode the image again, without metadata and without loss: the edit should not show compression marks."""
        picture = self._shrunk(open_picture(source))
        picture.info = {}
        buffer = io.BytesIO()
        picture.save(buffer, "PNG", compress_level=3)
        return buffer.getvalue()

    def _shrunk(self, picture: Image.Image) -> Image.Image:
        scale = self.size / (picture.width * picture.height) ** 0.5
        if scale >= 1:
            return picture
        size = tuple(max(round(edge * scale), 1) for edge in picture.size)
        return picture.resize(size, Image.Resampling.LANCZOS)

    @cached_property
    def price_bound(self) -> float:
        """More dollars than an image should cost, by the list price; 0 if unknown."""
        prices = image_prices(self.model)
        by_token = (
            0.0 if "gemini" in self.model else IMAGE_TOKENS_OUT * (prices.get("output_cost_per_image_token") or 0.0)
        )
        per_token_in = max(prices.get("input_cost_per_token", 0.0), prices.get("input_cost_per_image_token", 0.0))
        return max(price_per_image(self.model) or 0.0, by_token) + TOKENS_IN * per_token_in


class _PaidForNothing(ProviderError):
    may_be_billed = True


def _reply(value: Any, model: str, response: Any = None) -> Reply:
    """Read the body of an image, or else LiteLLM's response."""
    found = read_response(value, model, response)
    if not found.pictures and found.addresses:  # all others would be like this, and paid for
        raise _PaidForNothing(f"{model} sends {_ADDRESS}, which is not followed; give another --editor.")
    tokens, is_block = found.tokens or Tokens(), found.finish in ("content_filter", "refusal")
    dollars = image_bill(found.tokens, model) if found.cost is None else found.cost
    if found.tokens is None and not found.is_odd and dollars is None and is_block:
        dollars = 0.0
    word = f"content_filter: {found.word or found.text}" if is_block else f"{NO_IMAGE} {found.word or found.finish}"
    reply = Reply(
        text=found.pictures[-1] if found.pictures else "",
        finish="stop" if found.pictures else printable(without_secrets(word)),
        prompt_tokens=tokens.prompt,
        completion_tokens=tokens.completion,
        dollars=dollars,
        answered_by=model,
    )
    return without_usage(reply) if found.is_odd else reply
