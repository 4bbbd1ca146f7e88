"""Edit images with a provider's model, over LiteLLM.

Every candidate is a request of its own: few providers make several images at once, and none takes a seed. Requests go
through `llm.paid_model`, as the LLM's do, but are counted apart: the two have different providers.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from PIL import Image

from repair_hf.llm.answers import FailedAnswer
from repair_hf.llm.cost import Usage, image_bill, image_prices, price_per_image
from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.paid_model import PaidModel, Retries
from repair_hf.llm.prompts import SHIPPED, Prompts, draws
from repair_hf.llm.provider import (
    BlockedContent,
    ProviderError,
    check_key,
    find_provider,
    load_litellm,
)
from repair_hf.runtime.options import UserError
from repair_hf.runtime.redaction import printable
from repair_hf.synthesis.picture_files import save_picture, save_reason
from repair_hf.synthesis.sources import UnreadableImage, open_picture

# For these LiteLLM gives the URL of an image, which may point anywhere; other providers send the image itself.
_SEND_ADDRESSES = ("black_forest_labs", "fal_ai", "recraft")
_ADDRESS = "the address of an image"
NO_IMAGE = "no image"  # finish of a reply without a picture

CONCURRENCY = 8  # a request takes over ten seconds; new accounts may make some tens of images a minute
ATTEMPTS = 2  # at an image, if a reply holds none
# Assumed tokens of an image before the first bill: the most that providers make and take.
IMAGE_TOKENS_OUT, TOKENS_IN = 6_300, 8_000


class HostedEditor(PaidModel):
    """An image editor at a provider, such as `gemini/gemini-2.5-flash-image` or `openai/gpt-image-1`.

    Images are sent and kept at no more than the area of a square of side `size`.

    Args:
        price: US dollars per token in and out, of texts and images alike; None for LiteLLM's list.

    Attributes:
        usage: What this run has asked and paid.

    Raises:
        UserError: If the model id names no provider that LiteLLM knows, or one whose images do not come with its
            answers; or if there is a ceiling in dollars and no known price.
    """

    def __init__(
        self,
        model: str,
        ledger: Ledger,
        *,
        base_url: str | None = None,
        size: int = 512,
        price: tuple[float, float] | None = None,
        options: RequestOptions | None = None,
        retries: Retries | None = None,
        prompts: Prompts = SHIPPED,
    ) -> None:
        check_sends_images(model)
        check_key(model, base_url)
        options = options or RequestOptions(concurrency=CONCURRENCY)
        self.worst = worst_price(model, price) or 0.0
        super().__init__(model, ledger, options, has_price=worst_price(model, price) is not None, retries=retries)
        self.id, self.prompts = f"{model}?size={size}{prompts.mark}", prompts
        self.base_url = base_url
        self.size, self.price = size, price
        self.usage = Usage()

    async def edit(self, source: bytes, instruction: str, paths: Sequence[Path]) -> list[str]:
        """Buy an edited image for each path, or a new one (`Drawing`), and save it there.

        Where the answer is no image, a file of the suffix `.none` holds the reason.

        Returns:
            Why requests failed whose images the next run asks for again.

        Raises:
            UnreadableImage: If the source cannot be opened.
            RunStopped: If the run cannot go on.
        """
        image = None if draws(instruction) else await asyncio.to_thread(self._encoded, source)
        prompt = self.prompts.image(instruction)
        work = (self._buy(image, prompt, path) for path in paths)
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, FailedAnswer):
                raise outcome
        return [str(outcome) for outcome in outcomes if outcome is not None]

    async def _buy(self, image: bytes | None, prompt: str, path: Path) -> None:
        """Buy an image, or note why there is none; a file that is there stays."""
        for attempt in range(ATTEMPTS):
            key = f"{path.stem}-{attempt}"
            known = self.ledger.find(key)
            if known is not None and known.text:
                if path.is_file():  # another process has just made it
                    return
                await self.ledger.forget(key)  # its file was deleted
                known = None
            if known is None:
                send = partial(self._send_and_save, image, prompt, path)
                reply, is_new = await self.pay(key, Topic("edit", "t2i", self.model), lambda: self.worst, send)
            else:
                reply, is_new = known, False
            self.usage.add(reply, replayed=not is_new)
            if is_new:
                self.circuit.note(None if reply.text else reply.finish)
            if reply.finish == _ADDRESS:  # all others would be like this, and paid for
                raise ProviderError(f"{self.model} sends {_ADDRESS}, which is not followed; give another --editor.")
            if reply.text:
                return
            if reply.finish != NO_IMAGE:
                break
        save_reason(path, reply.finish)

    async def _send_and_save(self, image: bytes | None, prompt: str, path: Path) -> Reply:
        """Send a request once. The image is saved before the ledger says that it has come."""
        litellm = load_litellm()
        # No more arguments: LiteLLM sends those it does not know to the provider. One attempt is its default here.
        request = {"prompt": prompt, "api_base": self.base_url} | ({"image": image} if image else {})
        function = litellm.aimage_edit if image else litellm.aimage_generation
        try:
            response = await self.call(function, **request)
        except BlockedContent as error:
            return Reply("", printable(f"content_filter: {error}"), dollars=0.0, answered_by=self.model)
        pictures = [item.b64_json for item in response.data or () if item.b64_json]
        fault: str | None = _ADDRESS if any(item.url for item in response.data or ()) else NO_IMAGE
        if pictures:  # the last one: those before it are drafts
            fault = await asyncio.to_thread(self._save, pictures[-1], path)
        dollars = image_bill(response.usage, self.model, self.price)
        tokens = response.usage.input_tokens, response.usage.output_tokens
        return Reply("" if fault else path.name, fault or "stop", *tokens, dollars, self.model)

    def _save(self, data: str, path: Path) -> str | None:
        """Save a picture in base 64, no larger than `size`; return why it is none."""
        try:
            picture = open_picture(base64.b64decode(data))
        except (UnreadableImage, ValueError):  # the latter is of characters that base 64 lacks
            return "no image that can be read"
        return save_picture(path, self._shrunk(picture))

    def _encoded(self, source: bytes) -> bytes:
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


def check_sends_images(model: str) -> None:
    """Raise `UserError` if an editor's provider sends addresses of images, which are not followed."""
    _, provider = find_provider(model)
    if provider in _SEND_ADDRESSES:
        raise UserError(
            f"--editor {model}: {provider} sends {_ADDRESS}, which is not followed. Give one that sends the image, "
            "such as gemini/gemini-2.5-flash-image, or a diffusers id."
        )


def worst_price(model: str, price: tuple[float, float] | None = None) -> float | None:
    """Return more dollars than an image should cost, by the stated or listed price; None if neither is known."""
    if price is not None:
        return TOKENS_IN * price[0] + IMAGE_TOKENS_OUT * price[1]
    listed = image_prices(model)
    by_token = 0.0 if "gemini" in model else IMAGE_TOKENS_OUT * (listed.get("output_cost_per_image_token") or 0.0)
    per_token_in = max(listed.get("input_cost_per_token") or 0.0, listed.get("input_cost_per_image_token") or 0.0)
    return max(price_per_image(model) or 0.0, by_token) + TOKENS_IN * per_token_in or None
