"""Warn before a provider switches a model off, by the `deprecation_date` in the list that LiteLLM ships."""

from __future__ import annotations

import datetime
import logging

from repair_hf.llm.loading import load_litellm
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

WARNED_DAYS = 60


def check_retirement(option: str, model: str, *, allow_deprecated: bool = False) -> None:
    """Warn if a model is switched off within `WARNED_DAYS`. Nothing happens if LiteLLM knows no date.

    Args:
        option: The option that names the model, for the message.
        model: LiteLLM model id.
        allow_deprecated: Only warn after the date too.

    Raises:
        UserError: If the date is past.
    """
    date = retirement_date(model)
    if date is None or (left := (date - today()).days) > WARNED_DAYS:
        return
    if left >= 0:
        logger.warning("%s %s is switched off on %s, in %d days. Finish by then.", option, model, date, left)
        return
    past = f"{option} {model} was switched off on {date}, by LiteLLM's list."
    if not allow_deprecated:
        raise UserError(f"{past} Name a current model, or add --allow-deprecated if your provider still serves it.")
    logger.warning("%s It is asked all the same, as --allow-deprecated says.", past)


def retirement_date(model: str) -> datetime.date | None:
    """Return the last day of a model at its provider; None if LiteLLM's list names none."""
    listed = load_litellm().model_cost
    provider, _, name = model.partition("/")
    found = listed.get(model, {})
    if not found and listed.get(name, {}).get("litellm_provider", "").startswith(provider):
        found = listed[name]
    date = found.get("deprecation_date")
    return datetime.date.fromisoformat(date) if date else None


def today() -> datetime.date:
    return datetime.date.today()
