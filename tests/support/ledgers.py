"""Look into ledgers, and write payments into them."""

import asyncio
from pathlib import Path
from typing import Any

from repair_hf.llm.ledger import Ledger, Reply, Topic
from repair_hf.llm.ledger_file import FILE, read_calls


def ledger_in(folder: Path, max_usd: float | None = None, max_calls: int | None = None, run: str = ".") -> Ledger:
    """Open the ledger of a folder."""
    return Ledger(folder / FILE, run=run, max_usd=max_usd, max_calls=max_calls)


def rows(folder: Path, state: str = "answered") -> list[dict[str, Any]]:
    """Return the calls in a folder's ledger that are in a state."""
    return [call for call in read_calls(folder / FILE) if call["state"] == state]


def answers(folder: Path) -> int:
    """Return how many answers and images a folder's ledger has paid for."""
    return len(rows(folder))


def pay(
    folder: Path,
    key: str,
    dollars: float | None = 0.5,
    *,
    stage: str = "audit",
    direction: str = "i2t",
    model: str = "m",
    run: str = ".",
) -> None:
    """Write a paid answer, or an image (`edit`, `t2i`), into the ledger of a folder."""

    async def send() -> Reply:
        return Reply("yes", "stop", 10, 2, dollars, model)

    with ledger_in(folder, run=run) as ledger:
        asyncio.run(ledger.pay(key, Topic(stage, direction, model), 1.0, send))
