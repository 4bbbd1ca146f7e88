"""One's own LLM and image editor: functions of Python in the place of a model's id.

Their answers go through the same ledger and checks as those of a provider, so they are kept, and asked for once.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from PIL import Image

from repair_hf.llm.ledger import Reply
from repair_hf.llm.prompts import SHIPPED, Prompts
from repair_hf.llm.provider import Provider, ProviderError
from repair_hf.runtime.options import UserError

OwnLLM: TypeAlias = Callable[[dict[str, Any]], str | None | Awaitable[str | None]]
"""Takes a request in OpenAI's chat format, returns the text of the answer. See `docs/synthesis.md`."""
OwnEditor: TypeAlias = Callable[[Image.Image, str, int], Image.Image | None]
"""Takes an image, an instruction and a seed, returns the edited image."""

PYTHON = "python:"  # begins the id of a function
_FUNCTIONS: dict[str, Callable[..., Any]] = {}  # by id, of this process


def id_of(model: str | Callable[..., Any]) -> str:
    """Return the id of a model; a function gets one, by which `function_of` finds it in this process.

    Raises:
        UserError: If it has no name that says which function it is.
    """
    if isinstance(model, str):
        return model
    if not callable(model):
        raise UserError(f"A model is an id or a function, got {type(model).__name__}.")
    name = getattr(model, "id", None) or f"{model.__module__}.{getattr(model, '__qualname__', '<lambda>')}"
    if "<lambda>" in name:
        raise UserError(
            f"{model!r} has no name to keep its answers by. Define it with `def`, or give it an attribute `id`."
        )
    _FUNCTIONS[f"{PYTHON}{name}"] = model
    return f"{PYTHON}{name}"


def function_of(id: str) -> Callable[..., Any]:
    """Return the function of an id.

    Raises:
        UserError: If this process has none.
    """
    if id not in _FUNCTIONS:
        raise UserError(f"`{id}` is a function of a Python program. Run that program again, or give a model id.")
    return _FUNCTIONS[id]


def own_llm(id: str) -> Provider:
    """Return what answers requests with a function, for `Asker(id, provider=...)`."""
    function = function_of(id)

    async def reply(request: Mapping[str, Any]) -> Reply:
        # errors are caught in the thread: an event loop cannot carry a StopIteration
        text = await asyncio.to_thread(_call, id, function, dict(request))
        if inspect.isawaitable(text):
            try:
                text = await text
            except Exception as error:  # of any kind: it is not our code
                raise _failed(id, _described(error)) from error
        if not isinstance(text, str | None):
            raise _failed(id, f"it returned {type(text).__name__}, not a text or None")
        return Reply(text or "", "stop" if text is not None else "refusal", dollars=0.0, answered_by=id)

    return reply


class PythonEditor:
    """A function as an image editor on this machine; see `ImageEditor`."""

    def __init__(self, id: str, prompts: Prompts = SHIPPED) -> None:
        self.function, self.prompts = function_of(id), prompts
        self.model, self.id = id, f"{id}{prompts.mark}"

    def edit(self, source: Image.Image, instruction: str, seeds: list[int]) -> list[Image.Image | None]:
        """Call the function once for each seed."""
        return [self._edited(source, instruction, seed) for seed in seeds]

    def _edited(self, source: Image.Image, instruction: str, seed: int) -> Image.Image | None:
        image = _call(self.model, self.function, source.copy(), self.prompts.image(instruction), seed)
        if not isinstance(image, Image.Image | None):
            raise _failed(self.model, f"it returned {type(image).__name__}, not a PIL image or None")
        return image


def _call(id: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; an error of it stops the run."""
    try:
        return function(*arguments)
    except Exception as error:  # of any kind: it is not our code
        raise _failed(id, _described(error)) from error


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _failed(id: str, reason: str) -> ProviderError:
    name = id.removeprefix(PYTHON)
    return ProviderError(f"{name} failed: {reason}. Every answer so far is kept. Correct it, and run again.")
