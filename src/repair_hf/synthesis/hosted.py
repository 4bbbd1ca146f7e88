"""Edit images with a provider's model, over LiteLLM.

Every candidate is a request of its own: few providers make several images at once, and none takes a seed. Retries,
limits and error rate work as for the LLM, but are counted apart: the two have different providers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
import logging
from functools import cached_property, partial
from typing import Any

from PIL import Image

from repair_hf.llm.budget import Budget
from repair_hf.llm.failures import (
    Blocked,
    FailedRequest,
    PassingFailure,
    ProviderError,
    RejectedRequest,
    Retries,
    as_failure,
    insist,
)
from repair_hf.llm.journal import Journal, lost
from repair_hf.llm.limits import Circuit, Limits
from repair_hf.llm.loading import load_litellm
from repair_hf.llm.prompts import SHIPPED, Prompts, draws
from repair_hf.llm.provider import Reply, find_provider
from repair_hf.runtime.options import UserError
from repair_hf.synthesis.sources import UnreadableImage, open_picture

logger = logging.getLogger(__name__)

# For these LiteLLM gives the URL of an image, which may point anywhere; other providers send the image itself.
_SEND_ADDRESSES = ("black_forest_labs", "fal_ai", "recraft")
_ADDRESS = "the address of an image"

CONCURRENCY = 8  # a request takes over ten seconds; new accounts may make some tens of images a minute
# Assumed tokens of an image before the first bill: the most that providers make and take.
IMAGE_TOKENS_OUT, TOKENS_IN = 6_300, 8_000
GRACE = 60.0  # seconds that images on their way get to arrive when a run stops; they are paid for already


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
        timeout: float = 300.0,
        limits: Limits | None = None,
        circuit: Circuit | None = None,
        retries: Retries | None = None,
        prompts: Prompts = SHIPPED,
    ) -> None:
        _, provider = find_provider(model)
        if provider in _SEND_ADDRESSES:
            raise UserError(
                f"--editor {model}: {provider} sends {_ADDRESS}, which is not followed. Give one that sends the "
                "image, such as gemini/gemini-2.5-flash-image, or a diffusers id."
            )
        self.model, self.base_url, self.size, self.timeout = model, base_url, size, timeout
        self.id, self.prompts = f"{model}?size={size}{prompts.mark}", prompts
        self._limits, self.circuit = limits or Limits(CONCURRENCY), circuit or Circuit()
        self._retries = retries or Retries()
        self._highest_bill = 0.0  # of the bills so far
        self._has_served, self._is_draining = False, False
        self._pending: set[asyncio.Task] = set()
        self._on_wire: set[asyncio.Task] = set()

    async def edit(
        self, source: bytes, instruction: str, budget: Budget, journal: Journal | None = None
    ) -> Reply | None:
        """Ask for one edited image, or for a new one (`Drawing`).

        The journal records images that may be billed though they did not arrive.

        Returns:
            A reply whose text is the image file in base 64, or empty; `finish` then gives the reason. None if every
            attempt failed but other images were served: another run may ask again.

        Raises:
            UnreadableImage: If the source cannot be opened.
            RunStopped: If the provider fails, or the budget is spent.
        """
        task: Any = asyncio.current_task()
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        image = None if draws(instruction) else await asyncio.to_thread(self._resized, source)
        prompt = self.prompts.image(instruction)
        try:
            return await insist(
                lambda: self._attempt(image, prompt, budget, journal), self._retries, self.model, self._may_drop
            )
        except FailedRequest as failure:
            logger.warning("An image is left out: %s", failure)
            return None

    def opened(self, reply: Reply) -> Image.Image | None:
        """The picture in a reply, no larger than `size`; None if there is none."""
        if not reply.text:
            return None
        try:
            picture = open_picture(base64.b64decode(reply.text))
        except (UnreadableImage, binascii.Error):
            return None
        return self._shrunk(picture)

    async def drain(self) -> None:
        """Wait until the images on their way are saved, and cancel requests that were not sent yet."""
        pending = list(self._pending)
        for task in pending:
            if task not in self._on_wire:
                task.cancel()
        self._is_draining = True
        try:
            if pending:
                await asyncio.wait(pending, timeout=GRACE)
        finally:
            self._is_draining = False

    async def _attempt(self, image: bytes | None, prompt: str, budget: Budget, journal: Journal | None) -> Reply:
        if self._is_draining:  # this would be a retry
            raise asyncio.CancelledError
        try:
            async with self._limits.slot(0), budget.hold(self._worst_case, calls=0) as hold:
                reply = await hold.settle(
                    self._send(image, prompt, journal), self._worst_case, partial(self._lose, journal)
                )
                self._highest_bill = max(self._highest_bill, hold.paid or 0.0)
                if reply.finish == _ADDRESS:  # all others would be like this, and paid for
                    self._lose(journal, hold.paid or None)
                    raise ProviderError(
                        f"{self.model} sends {_ADDRESS}, which is not followed; give another --editor."
                    )
                return reply
        except PassingFailure as failure:
            if not failure.is_rate_limit:  # the limits handle those
                self.circuit.note(str(failure))
            raise

    def _may_drop(self) -> bool:
        return self._has_served or self.circuit.max_error_rate == 1

    def _lose(self, journal: Journal | None, dollars: float | None) -> None:
        if journal is not None:
            journal.put(lost("edit", "t2i", self.model, dollars))

    def _worst_case(self) -> float:
        return max(self.price_bound, self._highest_bill)

    async def _send(self, image: bytes | None, prompt: str, journal: Journal | None) -> Reply:
        litellm = load_litellm()
        import openai  # LiteLLM's exceptions are this library's

        task: Any = asyncio.current_task()
        self._on_wire.add(task)
        task.add_done_callback(self._on_wire.discard)  # when done, its image is on disk
        # No more arguments: LiteLLM sends those it does not know to the provider. One attempt is its default here.
        request = {"model": self.model, "prompt": prompt, "api_base": self.base_url, "timeout": self.timeout}
        try:
            if image is None:
                response = await litellm.aimage_generation(**request)
            else:
                response = await litellm.aimage_edit(image=image, **request)
        except openai.APIError as error:
            self._on_wire.discard(task)
            failure = as_failure(error, self.model)
            if isinstance(failure, Blocked):
                return Reply("", f"content_filter: {failure}", 0, 0, 0.0, self.model)
            others_were_accepted = self._has_served or (journal is not None and self.model in journal.models)
            if isinstance(failure, RejectedRequest) and others_were_accepted:  # so it is this image
                return Reply("", f"rejected: {failure}", 0, 0, 0.0, self.model)
            raise failure from None  # the original's traceback would show the provider's words uncensored
        self._has_served = True
        return _reply(response, self.model)

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
        known = load_litellm().model_cost
        prices = known.get(self.model) or known.get(self.model.partition("/")[2], {})
        per_token_out = prices.get("output_cost_per_image_token", 0.0)
        per_token_in = max(prices.get("input_cost_per_token", 0.0), prices.get("input_cost_per_image_token", 0.0))
        return (prices.get("output_cost_per_image") or IMAGE_TOKENS_OUT * per_token_out) + TOKENS_IN * per_token_in


def _reply(response: Any, model: str) -> Reply:
    """Read an image response. Where Gemini's filter refuses, there is no image and no error."""
    usage = response.usage
    images = [image.b64_json for image in response.data or [] if image.b64_json]
    is_address = not images and any(image.url for image in response.data or [])
    why_none = _ADDRESS if is_address else "content_filter: the provider sent no image"
    prompt_tokens = (usage and usage.get("input_tokens")) or 0
    dollars = response._hidden_params.get("response_cost")  # where LiteLLM documents the cost
    if not (prompt_tokens or dollars):  # LiteLLM reports 0 where the provider reports nothing
        dollars = None
    return Reply(
        text=images[0] if images else "",
        finish="stop" if images else why_none,
        prompt_tokens=prompt_tokens,
        completion_tokens=(usage and usage.get("output_tokens")) or 0,
        dollars=dollars,
        answered_by=model,
    )
