"""What the methods' data cost: requests of a product, payments of all products, and what the ceilings leave."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import filelock
from datasets import Dataset

from repair_hf.llm.batches import open_batches
from repair_hf.llm.budget import BudgetSpent
from repair_hf.llm.journal import bills, read_entries, total
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.study.work_sharing import WorkSharing
from repair_hf.synthesis.models import LLMOptions
from repair_hf.synthesis.reuse import is_inherited

logger = logging.getLogger(__name__)
T = TypeVar("T")


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


def paid(folders: Iterable[Path]) -> tuple[float, int]:
    """Return the dollars and the number of LLM answers that were paid for in some products' folders.

    An answer that was taken over from another product counts once.
    """
    files = [path for folder in folders for path in bills(folder)]
    own = list(read_entries(path for path in files if not is_inherited(path)))
    known = {entry.key for entry in own}
    copies = {entry.key: entry for entry in read_entries(filter(is_inherited, files)) if entry.key not in known}
    return total([*own, *copies.values()])


def limit_spending(llm: LLMOptions, folders: Iterable[Path]) -> LLMOptions:
    """Lower an LLM's ceilings by what was paid, or is with a provider, in some products' folders."""
    if llm.max_usd is None and llm.max_calls is None:
        return llm  # reading the answers of all products takes a minute
    return _with_ceilings(llm, *_less(llm, _committed(list(folders))))


class Purse:
    """What the products of a study may still pay, whichever processes make them.

    A product gets a part of what the ceilings leave: at first half, so that others can be made at the same time. If
    this is spent, it gets all that is left. A process that dies gives its part back.
    """

    def __init__(self, products: Path, sharing: WorkSharing) -> None:
        self.products, self.sharing = products, sharing

    def spend(self, llm: LLMOptions, folder: Path, make: Callable[[LLMOptions], T]) -> T:
        """Call `make` with the LLM and the ceilings of a product's folder, which count its own payments.

        `make` is called again with higher ceilings when it has reached these.

        Raises:
            BudgetSpent: If nothing is left.
        """
        if llm.max_usd is None and llm.max_calls is None:
            return make(llm)
        part = 1.0 if llm.batch else 0.5  # a batch is submitted within minutes
        while True:
            with self._part_of_what_is_left(part, llm, folder) as (limited, others):
                try:
                    return make(limited)
                except BudgetSpent:
                    if part == 1 and not others:
                        raise
            if part == 1:  # others may leave something
                logger.info("The limits of the study leave nothing for now; waiting for %s.", others[0])
                with self.sharing.lock(others[0]):
                    pass
            part = 1.0

    @contextmanager
    def _part_of_what_is_left(
        self, part: float, llm: LLMOptions, folder: Path
    ) -> Iterator[tuple[LLMOptions, list[str]]]:
        """Set money aside for a product; yield the LLM with its ceilings, and what else is being paid for."""
        lock, note = self.sharing.lock(f"paying--{folder.name}"), self.sharing.folder / f"paying--{folder.name}.json"
        with self.sharing.lock("purse").acquire(timeout=-1):
            lock.acquire(timeout=-1)
            others = self._others(note)
            taken = [self._set_aside(other) for other in others]  # before the sum: who pays meanwhile counts twice
            products = products_in(self.products)
            resting = [path for path in products if f"paying--{path.name}" not in others]
            spent = paid(products)
            left = _less(llm, _sum([spent, _promised(resting), *taken]))
            own = _committed([folder])
            ceilings = [None if each is None else own[at] + type(each)(part * each) for at, each in enumerate(left)]
            write_atomically(note, json.dumps(ceilings))
        try:
            yield _with_ceilings(llm, *ceilings), others
        finally:
            with self.sharing.lock("purse").acquire(timeout=-1):
                note.unlink()
                lock.release()

    def _others(self, own: Path) -> list[str]:
        """Return the names of the other products' notes; what a killed process left is deleted."""
        alive = []
        for note in sorted(set(self.sharing.folder.glob("paying--*.json")) - {own}):
            try:
                with self.sharing.lock(note.stem).acquire(timeout=0):
                    note.unlink(missing_ok=True)
            except filelock.Timeout:
                alive.append(note.stem)
        return alive

    def _set_aside(self, name: str) -> tuple[float, int]:
        """Return the dollars and calls that another product may still pay."""
        ceilings = json.loads((self.sharing.folder / f"{name}.json").read_text())
        spent = paid([self.products / name.removeprefix("paying--")])
        dollars, calls = (max((ceiling or 0) - each, 0) for ceiling, each in zip(ceilings, spent, strict=True))
        return dollars, int(calls)


def _committed(folders: Sequence[Path]) -> tuple[float, int]:
    return _sum([paid(folders), _promised(folders)])


def _promised(folders: Iterable[Path]) -> tuple[float, int]:
    """Return the dollars and the answers that submitted batches may cost."""
    return _sum([(each.dollars, each.requests) for each in open_batches(folders).values()])


def _sum(amounts: Iterable[tuple[float, int]]) -> tuple[float, int]:
    each = list(amounts)
    return sum(dollars for dollars, _ in each), sum(calls for _, calls in each)


def _less(llm: LLMOptions, spent: tuple[float, int]) -> tuple[float | None, int | None]:
    """Return what an LLM's ceilings leave of dollars and calls."""
    return (
        None if llm.max_usd is None else max(llm.max_usd - spent[0], 0.0),
        None if llm.max_calls is None else max(llm.max_calls - spent[1], 0),
    )


def _with_ceilings(llm: LLMOptions, dollars: Any, calls: Any) -> LLMOptions:
    return replace(llm, max_usd=dollars, max_calls=calls)
