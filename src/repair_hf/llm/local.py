"""A vision-language model of transformers as provider: nothing leaves the machine.

Requests of one kind that wait at the same time are answered as one batch, padded on the left. Each answer has a
temperature and a random generator of its own, so it does not depend on the rest of its batch (except for rounding).
Control tokens in the messages are encoded as plain text: no caption can end its turn or pose as an image.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import PartialState
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    GenerationConfig,
    LogitsProcessor,
    StoppingCriteria,
)

from repair_hf.llm.provider import ProviderError, Reply
from repair_hf.llm.tokens import content_parts, image_of
from repair_hf.runtime.hub_access import settle_hub
from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import name_with_digest

GATHERING = 0.01  # seconds in which further requests may join a batch; an answer takes far longer


class LocalModel:
    """A vision-language model in this process, on the GPU if there is one.

    Args:
        model: Hub id or folder of an image-text-to-text model whose processor has a chat template.

    Attributes:
        id: Hub id, or the folder's name with a digest of its files.

    Raises:
        UserError: If the model cannot be loaded.
    """

    def __init__(self, model: str, *, batch_size: int) -> None:
        device = PartialState().device
        settle_hub(model)
        try:
            self._processor = AutoProcessor.from_pretrained(model)
            self._model: Any = AutoModelForImageTextToText.from_pretrained(
                model, dtype=torch.float32 if device.type == "cpu" else "auto", use_safetensors=True
            )
        except (OSError, ValueError, ImportError) as error:  # ImportError: some processors need torchvision
            raise UserError(
                f"--llm {model}: no vision-language model could be loaded: {' '.join(str(error).split())[:300]} "
                "Give a Hub id such as Qwen/Qwen2.5-VL-7B-Instruct (it needs torchvision), a folder, or a LiteLLM id "
                "such as gemini/gemini-3.5-flash-lite."
            ) from error
        if self._processor.chat_template is None:
            raise UserError(
                f"--llm {model} has no chat template, so it cannot be asked; give an instruction-tuned model."
            )
        self._model.to(device).eval()
        self.id = name_with_digest(model)
        self._batch_size = batch_size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="local-llm")
        self._waiting: list[_Question] = []
        self._server: asyncio.Task | None = None

    async def __call__(self, request: Mapping[str, Any]) -> Reply:
        question = _Question(request, asyncio.get_running_loop().create_future())
        self._waiting.append(question)
        if self._server is None:
            self._server = asyncio.create_task(self._serve())
        return await question.answered

    async def _serve(self) -> None:
        try:
            await asyncio.sleep(GATHERING)
            while batch := self._next_batch():
                await self._answer_in_thread(batch)
                await asyncio.sleep(GATHERING)
        finally:
            self._server = None

    def _next_batch(self) -> list[_Question]:
        """Take the requests that wait longest, of one kind."""
        self._waiting = [question for question in self._waiting if not question.answered.done()]
        alike = [question for question in self._waiting if question.kind == self._waiting[0].kind]
        batch = alike[: self._batch_size]
        self._waiting = [question for question in self._waiting if question not in batch]
        return batch

    async def _answer_in_thread(self, batch: list[_Question]) -> None:
        loop = asyncio.get_running_loop()
        replies: Sequence[Reply | Exception]
        try:
            replies = await loop.run_in_executor(self._thread, self._answer, batch)
        except torch.OutOfMemoryError as error:
            fault = ProviderError(
                f"{self.id} ran out of memory with {len(batch)} requests in a batch; lower --concurrency. {error}"
            )
            replies = [fault] * len(batch)
        except Exception as error:  # passed on to the waiting tasks, which would wait for ever otherwise
            replies = [error] * len(batch)
        for question, reply in zip(batch, replies, strict=True):
            if question.answered.done():  # cancelled meanwhile
                continue
            if isinstance(reply, Exception):
                question.answered.set_exception(reply)
            else:
                question.answered.set_result(reply)

    @torch.inference_mode()
    def _answer(self, batch: list[_Question]) -> list[Reply]:
        inputs = self._processor.apply_chat_template(
            [[_message(message) for message in question.request["messages"]] for question in batch],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            sanitize_control_tokens=True,
            processor_kwargs={"padding": True, "padding_side": "left"},
        ).to(self._model.device, dtype=self._model.dtype)  # the dtype applies to pixels only
        pad = self._model.generation_config.pad_token_id
        said = self._model.generate(
            **inputs,
            generation_config=GenerationConfig(
                max_new_tokens=batch[0].request["max_tokens"],
                do_sample=False,  # `_Draws` does the sampling
                eos_token_id=self._ends(),
                pad_token_id=self._ends()[0] if pad is None else pad,
            ),
            logits_processor=[_Draws([question.request for question in batch], self._model.device)],
            stopping_criteria=[_CalledOff([question.answered.done for question in batch])],
        )
        start = inputs["input_ids"].shape[1]
        prompt_tokens = inputs["attention_mask"].sum(1).tolist()
        return [self._reply(row[start:].tolist(), count) for row, count in zip(said, prompt_tokens, strict=True)]

    def _ends(self) -> list[int]:
        ends = self._model.generation_config.eos_token_id
        if ends is None:
            ends = self._processor.tokenizer.eos_token_id
        return ends if isinstance(ends, list) else [ends]

    def _reply(self, tokens: list[int], prompt_tokens: int) -> Reply:
        end = next((place for place, token in enumerate(tokens) if token in self._ends()), None)
        return Reply(
            text=self._processor.tokenizer.decode(tokens[:end], skip_special_tokens=True),
            finish="length" if end is None else "stop",
            prompt_tokens=prompt_tokens,
            completion_tokens=len(tokens) if end is None else end + 1,
            dollars=0.0,
            answered_by=self.id,
        )


@dataclass(eq=False)
class _Question:
    request: Mapping[str, Any]
    answered: asyncio.Future
    # What must be equal in a batch: the number of images, because not every processor takes a mixture, and
    # `max_tokens`.
    kind: tuple = field(init=False)

    def __post_init__(self) -> None:
        parts = [part for message in self.request["messages"] for part in content_parts(message)]
        self.kind = sum(part["type"] == "image_url" for part in parts), self.request["max_tokens"]


class _Draws(LogitsProcessor):
    """Adds noise to the scores, so that greedy decoding samples each row at its temperature with its own generator.

    The argmax of `score / temperature + Gumbel noise` is a sample of the softmax. So sampled and greedy rows share a
    batch, and no row depends on another.
    """

    def __init__(self, requests: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        self.temperatures = [request["temperature"] for request in requests]
        self.generators = [torch.Generator(device).manual_seed(request["seed"]) for request in requests]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores = scores.float()  # (B, V); a copy unless it is float32 already
        noise = torch.zeros_like(scores)
        for row, (temperature, generator) in enumerate(zip(self.temperatures, self.generators, strict=True)):
            if temperature > 0:
                noise[row].exponential_(generator=generator).log_().mul_(-temperature)  # -log of it is Gumbel noise
        return scores + noise


class _CalledOff(StoppingCriteria):
    """Stops a batch when all its requests are cancelled."""

    def __init__(self, are_done: Sequence[Callable[[], bool]]) -> None:
        self.are_done = are_done

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        is_over = all(is_done() for is_done in self.are_done)
        return torch.full((len(input_ids),), is_over, device=input_ids.device, dtype=torch.bool)


def _message(message: Mapping[str, Any]) -> dict:
    """Convert a message from the OpenAI chat format to that of transformers' templates."""
    parts = [dict(part) for part in content_parts(message)]
    for k, part in enumerate(parts):
        if part["type"] == "image_url":
            with image_of(part) as image:  # encoded by `synthesis.sources`, which checks its size
                parts[k] = {"type": "image", "image": image.convert("RGB")}
    return {"role": message["role"], "content": parts}
