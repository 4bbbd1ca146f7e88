"""What `repair-hf synthesize --dry-run` prints."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import print_table
from repair_hf.mining.filtering import described
from repair_hf.synthesis.models import find_editor, find_llm, prompts_of
from repair_hf.synthesis.options import SynthesisOptions


def print_estimate(work: Any, output: Path) -> None:
    """Print calls, tokens and dollars of what is to be repaired, and what the filters save."""
    from repair_hf.analysis import costs
    from repair_hf.llm.calls import format_dollars
    from repair_hf.llm.cost import known_dollars, paid_in, price_per_image, price_per_token
    from repair_hf.synthesis.estimate import estimate_run, rehearse

    llm, editor, options = work.llm, work.editor, work.options
    (llm_place, llm_name), (editor_place, editor_name) = find_llm(llm), find_editor(editor)
    earlier = paid_in(output)
    how, mined = SynthesisOptions(**options.as_keywords()), Counter(work.failures["direction"])
    in_full = Counter(work.new["direction"])
    asked = work.failures.to_list()
    if gone := in_full.keys() - mined.keys():  # only their price is wanted, for what is saved
        asked += [row for row in work.new.to_list() if row["direction"] in gone]
    estimate_of = partial(
        estimate_run,
        rehearse(work.pairs, asked, llm_name, how, prompts_of(llm)),
        options=how,
        price=price_per_token(llm_name, batch=llm.batch) if llm_place == "litellm" else (0.0, 0.0),
        image_price=price_per_image(editor_name) if editor_place == "litellm" else 0.0,
    )
    estimate = estimate_of(mined)
    print_table(costs.ESTIMATE_HEADS, costs.estimate_rows(estimate, mined), labels=2)
    print(_basis(audited=options.audited, batch=llm.batch))
    limits = {name: vars(llm)[name] for name in ("concurrency", "requests_per_minute", "tokens_per_minute")}
    if work.left_out:
        whole = estimate_of(in_full).dollars
        saved = None if whole is None or estimate.dollars is None else whole - estimate.dollars
        print(f"Saved: {format_dollars(saved)} of {format_dollars(whole)}; {described(work.left_out)}.")
    print(costs.time_at_limits(estimate, **limits))
    if earlier:
        answers, spent = sum(use.calls for use in earlier.values()), format_dollars(known_dollars(earlier.values()))
        print(f"{output} already holds {answers:,} answers, for {spent}; they are not paid again.")
    print(costs.whole_price(costs.items_of(estimate, llm, editor)))


def _basis(*, audited: bool, batch: bool) -> str:
    """Say what the estimate goes by."""
    repaired = "at most, as if every failure passed the audit"
    if not audited:
        repaired = "every failure is repaired, because none is audited"
    return (
        "Tokens: counted on a sample of your failures; images by the provider's rule. A reasoning model writes "
        "several times as much (--reasoning-effort).\n"
        f"Calls: {repaired}; unusable answers are requested once more.\n"
        "Dollars: list prices" + (", those of the batch API." if batch else ".")
    )
