"""How often the toy world's LLM and image editor err, and the ids that choose it.

The LLM `world/oracle` and the editor `world` never err. `world/erring`, an LLM and an editor, err at the rates that
RePair's paper reports. A query after the id sets single rates: `world/oracle?malformed_rate=0.1`, `world?drift=0.5`.

The paper's figures are shares of what is kept. The constants here are rates of single answers and single candidates;
selection among candidates lies between the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from repair_hf.runtime.options import UserError

DESERVE = 0.365  # middle of the shares of failures that pass the paper's audit: I2T 32%, T2I 41%
RECALL, PRECISION = 0.839, 0.902  # the paper's audit against annotators
# Of all failures, DESERVE * RECALL are kept rightly. Precision says how many are kept wrongly beside these.
KEPT_WRONGLY = DESERVE * RECALL * (1 - PRECISION) / PRECISION  # share of all failures
CRITERION_1 = 0.27  # share of rejects that name the annotation; in the paper I2T 28%, T2I 26% (COCO30K)

ALIKE = 0.5  # share of an editor's errors that all candidates of an edit have: some edits are hard


@dataclass(frozen=True)
class LLMErrors:
    """Rates of an LLM's errors, by answer."""

    keeps_bad: float = 0.0  # audits of failures that should be rejected, and are kept
    rejects_good: float = 0.0  # audits of failures that should be kept, and are rejected
    missed: float = 0.0  # instructions and captions in which one difference is overlooked
    extra: float = 0.0  # instructions and captions in which one right fact becomes wrong
    invents: float = 1.0  # true captions that are to be corrected and get an invented error, not [No Error]
    misjudges: float = 0.0  # checks of edits that are answered wrongly; the paper reports no such rate
    malformed_rate: float = 0.0  # JSON answers that are broken


@dataclass(frozen=True)
class EditorErrors:
    """Rates of an image editor's errors, by candidate."""

    missed: float = 0.0  # one of the changes is not made
    drift: float = 0.0  # the layout and one fact that should stay change, too
    smear: float = 0.0  # strength of the trace that every edit leaves, not a rate


LLMS = {
    "world/oracle": LLMErrors(),
    "world/erring": LLMErrors(
        keeps_bad=round(KEPT_WRONGLY / (1 - DESERVE), 3),  # precision 90.2%
        rejects_good=round(1 - RECALL, 3),  # recall 83.9%
        missed=0.01,  # retained edits that match the query, I2T: 96.5%
        extra=0.01,
        invents=0.15,  # retained edits whose false positive was wrong, I2T: 99.0%
    ),
}
EDITORS = {
    "world": EditorErrors(),
    "world/erring": EditorErrors(
        missed=0.03,  # retained edits that are valid hard contrasts, T2I: 89.5%. Half of the others miss a change
        drift=0.10,  # ... and half drift; selection keeps fewer than were made
        smear=0.5,  # no figure: the paper saw 1 visible artifact in 800 edits, but a tower sees more than people
    ),
}

Errors = TypeVar("Errors", LLMErrors, EditorErrors)

_NUMBER = re.compile(r"\d*\.?\d+")


def is_one_of(id: str, models: Mapping[str, Any]) -> bool:
    """Return whether an id names one of `models`, with or without rates."""
    return id.partition("?")[0] in models


def errors_of(id: str, models: Mapping[str, Errors]) -> Errors:
    """Read the rates of a model's id, such as `world?drift=0.5`; what the query leaves out is the model's own.

    Raises:
        UserError: If the query names no rate, or a value is no number from 0 to 1.
    """
    name, _, query = id.partition("?")
    errors = models[name]
    known = [each.name for each in fields(errors)]
    for part in filter(None, query.split("&")):
        rate, _, value = part.partition("=")
        if rate not in known:
            raise UserError(f"`{id}`: {rate!r} is not a rate of this model; it has {', '.join(known)}.")
        if not _NUMBER.fullmatch(value) or float(value) > 1:
            raise UserError(f"`{id}`: {rate} must be a number from 0 to 1, got {value!r}.")
        errors = replace(errors, **{rate: float(value)})
    return errors


def name_of(id: str, models: Mapping[str, Errors]) -> str:
    """Return a model's name with all rates at which it errs: models with other rates are other models."""
    errors = errors_of(id, models)
    rates = [
        f"{each.name}={rate:g}" for each in fields(errors) if (rate := getattr(errors, each.name)) != each.default
    ]
    return id.partition("?")[0] + ("?" + "&".join(rates) if rates else "")
