"""The models of a synthesis, by id: an LLM and an image editor.

The id says where a model is. The toy world has two LLMs and two editors (`toyworld.errors`). An editor that is an
existing folder, or whose id begins with no provider of LiteLLM, is loaded on this machine by `diffusers`. A function
of Python has an id too (`own`). Everything else goes to LiteLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes
from repair_hf.synthesis.options import EditorOptions, LLMOptions
from repair_hf.synthesis.own import PYTHON, PythonEditor, function_of, own_llm
from repair_hf.toyworld.errors import EDITORS, LLMS, Errors, errors_of, is_one_of, name_of

if TYPE_CHECKING:
    from repair_hf.llm.asker import Asker
    from repair_hf.llm.ledger import Ledger
    from repair_hf.llm.prompts import Prompts
    from repair_hf.synthesis.hosted import HostedEditor
    from repair_hf.synthesis.images import ImageEditor

Place = Literal["world", "here", "litellm", "python"]

ORACLE = "world/oracle"


def find_llm(options: LLMOptions) -> Place:
    """Return where the LLM is.

    Raises:
        UserError: If it needs a server that is not given.
    """
    place = _find(options.llm, LLMS, options.llm_base_url)
    if place == "here":
        raise UserError(
            f"--llm {options.llm} needs a server. Start one with `transformers serve {options.llm}`, and give "
            f"--llm hosted_vllm/{options.llm} --llm-base-url http://localhost:8000/v1."
        )
    return place


def find_editor(options: EditorOptions) -> Place:
    """Return where the image editor is."""
    return _find(options.editor, EDITORS, options.editor_base_url)


def llm_price(options: LLMOptions) -> tuple[float, float] | None:
    """Return the price of the LLM in dollars per token, in and out; None if it is neither stated nor listed.

    A model on this machine costs nothing. So does one on a server of one's own that has no other price.
    """
    from repair_hf.llm.cost import price_per_token

    if find_llm(options) != "litellm":
        return 0.0, 0.0
    return stated_price(options) or price_per_token(options.llm, batch=options.batch)


def stated_price(options: LLMOptions) -> tuple[float, float] | None:
    """Return the price that the options state; 0 for a server of one's own whose model LiteLLM does not list.

    Under a ceiling in dollars such a server has no price: it may be another's.
    """
    from repair_hf.llm.cost import price_per_token

    is_own = options.llm_base_url is not None and options.max_usd is None
    return _per_token(options.price, is_own=is_own and price_per_token(options.llm) is None)


def check_models(llm: LLMOptions, editor: EditorOptions) -> None:
    """Check keys, ids and prices of both models, before anything is loaded or paid; an editor may be missing.

    Raises:
        UserError: As `check_llm` and `check_editor`.
    """
    check_llm(llm)
    if editor.editor is not None:
        check_editor(editor, llm)


def check_llm(options: LLMOptions) -> None:
    """Check what can be checked of the LLM without asking it: open it with an empty ledger.

    Raises:
        UserError: As `open_asker`.
    """
    from repair_hf.llm.ledger import Ledger

    with Ledger(max_usd=options.max_usd) as ledger:
        open_asker(options, ledger)


def check_editor(options: EditorOptions, llm: LLMOptions, *, from_text: bool = False) -> None:
    """Check what can be checked of the image editor without loading it; `from_text` if it is to draw as well.

    Raises:
        UserError: As `open_editor`; or if it cannot do what the options ask.
    """
    place = find_editor(options)
    if place == "litellm":
        from repair_hf.llm.ledger import Ledger

        with Ledger(max_usd=llm.max_usd) as ledger:
            open_editor(options, llm, ledger)
    if place == "world" and options.editor_format != "png":
        raise UserError("`editor_format` must be png for the toy world, whose files hold their scene; leave it out.")
    if place == "here":
        from repair_hf.synthesis.images import check_pipeline

        check_pipeline(options, from_text=from_text)


def prompts_of(options: LLMOptions) -> Prompts:
    """Return the prompts that the options name.

    Raises:
        UserError: If a file of `prompts` lacks what ours holds.
    """
    from repair_hf.llm.prompts import Prompts

    return Prompts(options.prompts, options.domain_notes, options.audit, options.always_instruct)


def open_ledger(options: LLMOptions, folder: Path) -> Ledger:
    """Open the ledger that a run's folder pays from, with the ceilings that the options set."""
    from repair_hf.llm.ledger import Ledger
    from repair_hf.llm.ledger_file import place_of

    path, run = place_of(folder, options.ledger)
    return Ledger(path, run=run, max_usd=options.max_usd, max_calls=options.max_calls)


def open_asker(options: LLMOptions, ledger: Ledger) -> Asker:
    """Open the LLM with the ledger that keeps its answers. Several processes share limits and ceilings.

    Raises:
        UserError: If there is no such model, it has no key or, under a ceiling in dollars, no price, or it cannot do
            what the options ask.
    """
    from repair_hf.llm.asker import Asker
    from repair_hf.llm.batch_asker import BatchAsker
    from repair_hf.toyworld import oracle

    place, name = find_llm(options), options.llm
    count = processes().count
    if options.batch and (place != "litellm" or count > 1):
        why = f"{count} processes" if count > 1 else f"--llm {name}, which answers at once"
        raise UserError(f"`batch` needs one process and a provider with a batch API, got {why}; leave it out.")
    if options.reasoning_effort is not None and place != "litellm":
        raise UserError(f"`reasoning_effort` needs a provider, and --llm {name} has none; leave it out.")
    settings: dict[str, Any] = {"options": options, "prompts": prompts_of(options)}
    if place == "world":
        return Asker(name_of(name, LLMS), ledger, provider=oracle.provider(name), **settings)
    if place == "python":
        return Asker(name, ledger, provider=own_llm(name), **settings)
    kind = BatchAsker if options.batch else Asker
    return kind(name, ledger, base_url=options.llm_base_url, price=stated_price(options), **settings)


def editor_price(options: EditorOptions, llm: LLMOptions) -> tuple[float, float] | None:
    """Return the price of a hosted editor that is stated; as `stated_price`."""
    from repair_hf.synthesis.hosted import worst_price

    is_own = options.editor_base_url is not None and llm.max_usd is None
    return _per_token(options.editor_price, is_own=is_own and worst_price(options.editor) is None)


def open_editor(options: EditorOptions, llm: LLMOptions, ledger: Ledger) -> ImageEditor | HostedEditor:
    """Open the image editor. Timeout, error rate and prompts are those of `llm`.

    Raises:
        UserError: If there is no such model, it cannot edit images, it has no key or, under a ceiling in dollars, no
            price.
    """
    place, name = find_editor(options), options.editor
    if place == "world":
        from repair_hf.toyworld.editor import WorldEditor

        return WorldEditor(name)
    if place == "python":
        return PythonEditor(name, prompts_of(llm))
    if place == "here":
        from repair_hf.synthesis.images import load_editor

        return load_editor(options, prompts_of(llm))
    from repair_hf.synthesis.hosted import CONCURRENCY, HostedEditor

    return HostedEditor(
        name,
        ledger,
        base_url=options.editor_base_url,
        size=options.editor_size,
        price=editor_price(options, llm),
        options=replace(llm, concurrency=CONCURRENCY),  # its provider is another one
        prompts=prompts_of(llm),
    )


def local_weights(editor: EditorOptions) -> dict[str, str]:
    """Return the digest of an editor in a folder, whose weights may change under the same path."""
    from repair_hf.runtime.run_folder import name_with_digest

    is_folder = find_editor(editor) == "here" and Path(editor.editor).is_dir()
    return {"editor_digest": name_with_digest(editor.editor)} if is_folder else {}


def _per_token(price: list[float] | None, *, is_own: bool) -> tuple[float, float] | None:
    """Return a stated price, which is in dollars per million tokens in and out, per token.

    Raises:
        UserError: If it is not two amounts.
    """
    if price is None:
        return (0.0, 0.0) if is_own else None
    if len(price) != 2:
        raise UserError(f"A price is two amounts, in dollars per million tokens in and out, got {price}.")
    return price[0] / 1e6, price[1] / 1e6


def _find(id: str, toys: Mapping[str, Errors], base_url: str | None) -> Place:
    if id.startswith(PYTHON):
        function_of(id)  # an error of the user, if there is none
        return "python"
    if base_url is not None:
        return "litellm"
    if is_one_of(id, toys):
        errors_of(id, toys)  # an error of the user, if the query is wrong
        return "world"
    if Path(id).is_dir():
        return "here"
    first, slash, _ = id.partition("/")
    if first == "world":
        kind = "LLM" if toys is LLMS else "image editor"
        raise UserError(f"`{id}` is neither a folder nor an {kind} of the toy world, which has {' and '.join(toys)}.")
    from repair_hf.llm.provider import load_litellm

    # LiteLLM knows some names without a provider, such as gpt-4o
    return "litellm" if not slash or first in load_litellm().provider_list else "here"
