"""The models that a synthesis works with, by id: an LLM and an image editor.

In:  the options that name them and bound their use.
Out: a `ChatModel` and an `ImageEditor`, ready to work.

An id says by itself where the model is: `world/oracle` and `world` are the toy world's; an existing folder, or an id whose first part is
no provider of LiteLLM, is loaded here (by `transformers` or `diffusers`); the rest goes to LiteLLM. `litellm:`, `transformers:` or
`diffusers:` in front decides a doubtful case, such as a Hub organization that is called like a provider.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from repair_hf.runtime.options import UserError, need, opt

if TYPE_CHECKING:
    from repair_hf.llm.client import ChatModel
    from repair_hf.llm.journal import Journal
    from repair_hf.llm.provider import Provider
    from repair_hf.synthesis.hosted import HostedEditor
    from repair_hf.synthesis.images import ImageEditor

Place = Literal["world", "here", "litellm"]

ORACLE = "world/oracle"


@dataclass
class LLMOptions:
    """Which LLM, and how much of it."""

    _argument_group_name = "llm"

    llm: str = need(
        "Audits, instructs and edits captions: a LiteLLM id (gemini/gemini-2.5-flash), a vision-language model of transformers by Hub "
        "id or folder, or world/oracle for the toy world. `litellm:` or `transformers:` in front decides a doubtful id."
    )
    llm_base_url: str | None = opt(None, "Endpoint of a server that speaks the protocol of --llm's provider.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high"] | None = opt(
        None,
        "How much the LLM thinks before it answers, where its provider lets one say: thoughts are paid for like answers. The provider's "
        "own default when left out, and for a model that does not know the word.",
    )
    concurrency: int = opt(16, "LLM requests under way at once; a local model answers so many in one batch.")
    requests_per_minute: int | None = opt(None, "Limit of the provider; none when left out.")
    tokens_per_minute: int | None = opt(None, "Limit of the provider, prompt and answer together; none when left out.")
    timeout: float = opt(
        300.0,
        "Seconds until a request, for a text or for an image, counts as failed. It may be billed all the same, so the ceilings count "
        "the most that it may cost.",
    )
    max_error_rate: float = opt(
        0.5,
        "Stop when more than this share of recent requests or answers is of no use; at 1 drop what fails, and go on.",
    )
    max_usd: float | None = opt(
        None, "Never let this folder cost more dollars than this, LLM and image editor together."
    )
    max_calls: int | None = opt(None, "Never pay for more answers of the LLM than this for this folder.")
    batch: bool = opt(False, "Use the provider's batch API, at half the price: submit, come back later, collect.")
    verdict_noise: float = opt(0.0, "Toy world: share of audits that come to the opposite verdict.")
    malformed_rate: float = opt(0.0, "Toy world: share of answers that are broken JSON.")

    def __post_init__(self) -> None:
        _check_positive(self, "concurrency", "requests_per_minute", "tokens_per_minute", "timeout")
        _check_share(self, "max_error_rate", "verdict_noise", "malformed_rate")
        for name in ("max_usd", "max_calls"):
            if vars(self)[name] is not None and vars(self)[name] < 0:
                raise UserError(f"`{name}` must not be negative, got {vars(self)[name]}.")
        is_oracle = self.llm in (ORACLE, f"litellm:{ORACLE}") and self.llm_base_url is None
        if (self.verdict_noise or self.malformed_rate) and not is_oracle:
            raise UserError(
                f"`verdict_noise` and `malformed_rate` are faults of the toy world's oracle; use them with --llm {ORACLE}."
            )


@dataclass
class EditorOptions:
    """Which image editor, and how it works."""

    _argument_group_name = "editor"

    editor: str = need(
        "Edits images: a diffusers Hub id or folder, a LiteLLM id (gemini/gemini-2.5-flash-image), or `world` for the toy world. "
        "`litellm:` or `diffusers:` in front decides a doubtful id."
    )
    editor_base_url: str | None = opt(
        None, "Endpoint of a server that speaks the protocol of a LiteLLM editor's provider."
    )
    editor_steps: int = opt(8, "diffusers: denoising steps per image.")
    editor_size: int = opt(512, "Images are edited at the area of a square with this side, in pixels.")
    editor_batch_size: int = opt(1, "diffusers: failures edited at once, where the pipeline can.")
    editor_dtype: Literal["auto", "float32", "float16", "bfloat16"] = opt(
        "auto", "diffusers: type of the weights; auto is bfloat16 on a GPU and float32 on the CPU."
    )
    editor_offload: Literal["none", "model", "sequential"] = opt(
        "none",
        "diffusers: keep in main memory what the GPU does not need right now, by whole models or layer by layer.",
    )
    drift: float = opt(0.0, "Toy world: share of edited images in which too much changes.")
    artifacts: float = opt(
        0.0, "Toy world: strength, from 0 to 1, of the trace that editing leaves in each image's look."
    )

    def __post_init__(self) -> None:
        _check_positive(self, "editor_steps", "editor_batch_size")
        _check_share(self, "drift", "artifacts")
        if self.editor_size < 64:
            raise UserError(f"`editor_size` must be at least 64 pixels, got {self.editor_size}.")
        if (self.drift or self.artifacts) and self.editor != "world":
            raise UserError(
                "`drift` and `artifacts` are faults of the toy world's editor; use them with --editor world."
            )


def find_llm(options: LLMOptions) -> tuple[Place, str]:
    """Where the LLM is, and its name there."""
    return _find(options.llm, ORACLE, "transformers", options.llm_base_url)


def find_usable_llm(options: LLMOptions) -> tuple[Place, str]:
    """As `find_llm`, where it can be used as the options say.

    Raises:
        UserError: If it cannot.
    """
    from repair_hf.llm.batch_api import batch_route
    from repair_hf.runtime.processes import processes

    (place, name), count = find_llm(options), processes().count
    if options.batch and (place != "litellm" or count > 1):
        why = f"{count} processes" if count > 1 else f"--llm {options.llm}, which answers at once"
        raise UserError(f"`batch` needs one process and a provider with a batch API, got {why}; leave it out.")
    if options.batch:
        batch_route(name)
    if options.reasoning_effort is not None and place != "litellm":
        raise UserError(f"`reasoning_effort` is told to a provider, and --llm {options.llm} has none; leave it out.")
    return place, name


def find_editor(options: EditorOptions) -> tuple[Place, str]:
    """Where the image editor is, and its name there."""
    return _find(options.editor, "world", "diffusers", options.editor_base_url)


def open_chat(options: LLMOptions, journal: Journal) -> ChatModel:
    """The LLM, with the journal that remembers its answers. Of several processes each has a part of the limits and ceilings.

    Raises:
        UserError: If there is no such model, or it cannot be used in that way.
    """
    from repair_hf.llm.batches import Batches, refuse_if_waiting
    from repair_hf.llm.budget import Budget
    from repair_hf.llm.client import ChatModel
    from repair_hf.llm.limits import Limits
    from repair_hf.llm.sending import RequestOptions
    from repair_hf.runtime.processes import processes

    (place, name), count = find_usable_llm(options), processes().count
    name, provider = _provider(options, place, name)
    batches = journal.path.parent / "batches"
    if not options.batch:
        refuse_if_waiting(batches)
    return ChatModel(
        name,
        journal=journal,
        base_url=options.llm_base_url,
        options=RequestOptions(
            timeout=options.timeout,
            reasoning_effort=options.reasoning_effort,
            limits=Limits(
                options.concurrency, options.requests_per_minute, options.tokens_per_minute, processes=_sharing(place)
            ),
            max_error_rate=options.max_error_rate,
        ),
        provider=provider,
        budget=Budget(options.max_usd, options.max_calls, processes=count),
        batches=Batches(name, batches, base_url=options.llm_base_url) if options.batch else None,
    )


def open_editor(options: EditorOptions, llm: LLMOptions) -> ImageEditor | HostedEditor:
    """The image editor; `llm` tells when to give up on a provider.

    Raises:
        UserError: If there is no such model, or it cannot edit images.
    """
    place, name = find_editor(options)
    if place == "world":
        from repair_hf.toyworld.editor import WorldEditor

        return WorldEditor(drift=options.drift, artifacts=options.artifacts)
    if place == "litellm":
        from repair_hf.llm.limits import Circuit, Limits
        from repair_hf.synthesis.hosted import CONCURRENCY, HostedEditor

        return HostedEditor(
            name,
            base_url=options.editor_base_url,
            size=options.editor_size,
            timeout=llm.timeout,
            limits=Limits(CONCURRENCY, processes=_sharing(place)),
            circuit=Circuit(llm.max_error_rate),
        )
    from repair_hf.synthesis.images import load_editor

    return load_editor(
        name,
        steps=options.editor_steps,
        size=options.editor_size,
        batch_size=options.editor_batch_size,
        dtype=options.editor_dtype,
        offload=options.editor_offload,
    )


def local_weights(llm: LLMOptions, editor: EditorOptions) -> dict[str, str]:
    """Digests of the models that lie in folders, where other weights may come to lie under the same path."""
    from repair_hf.runtime.run_folder import name_with_digest

    found = {"llm_digest": find_llm(llm), "editor_digest": find_editor(editor)}
    return {
        key: name_with_digest(name) for key, (place, name) in found.items() if place == "here" and Path(name).is_dir()
    }


def _provider(options: LLMOptions, place: Place, name: str) -> tuple[str, Provider | None]:
    """What the answers are filed under, and who answers; None leaves it to LiteLLM."""
    from repair_hf.toyworld import oracle

    faults = {"verdict_noise": options.verdict_noise, "malformed_rate": options.malformed_rate}
    told = "&".join(f"{fault}={rate:g}" for fault, rate in faults.items() if rate)
    filed = f"{name}?{told}" if told else name  # an oracle that errs is another model, with answers of its own
    if place == "world":
        return filed, oracle.provider(**faults)
    if place == "here":
        from repair_hf.llm.local import LocalModel

        model = LocalModel(name, batch_size=options.concurrency)
        return model.id, model
    if name == ORACLE and options.llm_base_url is None:  # the oracle as one of LiteLLM's providers, as slow as any
        oracle.register(**faults)
    return filed, None


def _sharing(place: Place) -> int:
    """How many processes share a provider's limits. What runs here, each process has for itself."""
    from repair_hf.runtime.processes import processes

    return processes().count if place == "litellm" else 1


def _find(id: str, toy: str, library: str, base_url: str | None) -> tuple[Place, str]:
    prefix, colon, name = id.partition(":")
    if colon and prefix == "litellm":
        return "litellm", name
    if colon and prefix == library:
        return "here", name
    if base_url is not None:
        return "litellm", id
    if id == toy:
        return "world", id
    if Path(id).is_dir():
        return "here", id
    if id.partition("/")[0] == "world":
        kind = "LLM" if toy == ORACLE else "image editor"
        raise UserError(f"`{id}` is no folder, and the toy world has one {kind}: {toy}.")
    from repair_hf.llm.loading import load_litellm

    first, slash, _ = id.partition("/")
    # without a slash it is one of the names that LiteLLM knows without a provider, such as gpt-4o
    return ("litellm" if not slash or first in load_litellm().provider_list else "here"), id


def _check_positive(options: Any, *names: str) -> None:
    for name in names:
        if vars(options)[name] is not None and vars(options)[name] <= 0:
            raise UserError(f"`{name}` must be more than 0, got {vars(options)[name]}.")


def _check_share(options: Any, *names: str) -> None:
    for name in names:
        if not 0 <= vars(options)[name] <= 1:
            raise UserError(f"`{name}` is a share between 0 and 1, got {vars(options)[name]}.")
