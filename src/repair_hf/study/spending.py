"""What the methods' data cost: requests of a product, payments of all products, and what the ceilings leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from repair_hf.llm.journal import bills, read_entries, total
from repair_hf.synthesis.models import LLMOptions
from repair_hf.synthesis.reuse import is_inherited


@dataclass(frozen=True)
class Cost:
    """What samples or records cost. Calls and dollars count every request, also repeated, reused and rejected ones."""

    samples: int  # number of samples that were made; records without an edit do not count
    llm_calls: int
    image_calls: int  # candidate images
    llm_per_sample: float  # LLM requests for one sample without rejects, as in the paper's overhead table
    images_per_sample: float  # candidate images for one sample, counted likewise
    dollars: float | None  # list price of all requests; None if a price is unknown


@dataclass(frozen=True)
class Product:
    """Samples or records that a method trains on."""

    data: Dataset
    cost: Cost
    name: str  # digest of the content


def total_cost(costs: Iterable[Cost]) -> dict[str, Any]:
    """Add up what the products of a method cost: all numbers of `Cost`, by name."""
    parts = list(costs)
    samples = sum(one.samples for one in parts)
    dollars = [one.dollars for one in parts if one.dollars is not None]
    return {
        "samples": samples,
        "llm_calls": sum(one.llm_calls for one in parts),
        "image_calls": sum(one.image_calls for one in parts),
        "llm_per_sample": sum(one.llm_per_sample * one.samples for one in parts) / max(samples, 1),
        "images_per_sample": sum(one.images_per_sample * one.samples for one in parts) / max(samples, 1),
        "dollars": sum(dollars) if len(dollars) == len(parts) else None,
    }


def products_in(folder: Path) -> list[Path]:
    """Return the folders of products, without half-copied ones."""
    return [path for path in folder.glob("*") if not path.name.startswith(".")]


def paid(folders: Iterable[Path]) -> tuple[float, int]:
    """Return the dollars and the number of LLM answers that were paid for in some products' folders.

    An inherited answer counts only if the product that paid for it is not among the folders.
    """
    files = [path for folder in folders for path in bills(folder)]
    own = list(read_entries(path for path in files if not is_inherited(path)))
    known = {entry.key for entry in own}
    copies = {entry.key: entry for entry in read_entries(filter(is_inherited, files)) if entry.key not in known}
    return total([*own, *copies.values()])


def limit_spending(llm: LLMOptions, folders: Iterable[Path], own: Iterable[Path] = ()) -> LLMOptions:
    """Lower an LLM's ceilings by what was already paid in some products' folders.

    The new ceilings are those of the folders `own`, which subtract their own payments themselves.
    """
    if llm.max_usd is None and llm.max_calls is None:
        return llm  # reading the answers of all products takes a minute
    dollars, calls = paid(folders)
    own_dollars, own_calls = paid(own)
    return replace(
        llm,
        max_usd=None if llm.max_usd is None else max(llm.max_usd - dollars, 0.0) + own_dollars,
        max_calls=None if llm.max_calls is None else max(llm.max_calls - calls, 0) + own_calls,
    )
