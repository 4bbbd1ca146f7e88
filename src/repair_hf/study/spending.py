"""What the methods' data cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset


@dataclass(frozen=True)
class Cost:
    """What samples or records cost. Calls and dollars count every request, also repeated, reused and rejected ones."""

    samples: int  # number of samples that were made; records without an edit do not count
    llm_calls: int | None  # None if it is unknown, as for records from the Hub
    image_calls: int | None  # candidate images
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

    def in_all(name: str) -> Any:
        each = [getattr(one, name) for one in parts]
        return None if None in each else sum(each)

    return {
        "samples": samples,
        "llm_calls": in_all("llm_calls"),
        "image_calls": in_all("image_calls"),
        "llm_per_sample": sum(one.llm_per_sample * one.samples for one in parts) / max(samples, 1),
        "images_per_sample": sum(one.images_per_sample * one.samples for one in parts) / max(samples, 1),
        "dollars": in_all("dollars"),
    }


def products_in(folder: Path) -> list[Path]:
    """Return the folders of products, without half-copied ones."""
    return [path for path in folder.glob("*") if not path.name.startswith(".")]
