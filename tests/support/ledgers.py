"""Look into ledgers, and write payments into them."""

from pathlib import Path
from typing import Any

from repair_hf.llm.ledger import Call, Ceilings, Ledger, Reply, Topic
from repair_hf.llm.ledger_file import FILE, read_calls
from repair_hf.llm.options import RequestOptions
from repair_hf.llm.sending import Question, Retries, Send, Sender

__all__ = ["answers", "ledger_in", "pay", "rows", "send_once"]


def ledger_in(folder: Path, max_usd: float | None = None, max_calls: int | None = None, run: str = ".") -> Ledger:
    """Open the ledger of a folder."""
    return Ledger(folder / FILE, run=run, ceilings=Ceilings(max_usd, max_calls))


def rows(folder: Path, state: str = "answered") -> list[dict[str, Any]]:
    """Return the calls of a run's folder in a state, as they are written."""
    return [call for call in read_calls(folder) if call["state"] == state]


def answers(folder: Path) -> int:
    """Return how many answers and images a run's folder has paid for."""
    return len(rows(folder))


def pay(
    folder: Path,
    key: str,
    dollars: float = 0.5,
    *,
    stage: str = "audit",
    direction: str = "i2t",
    model: str = "m",
    run: str = ".",
) -> None:
    """Write a paid answer, or an image (`edit`, `t2i`), into the ledger of a folder."""
    topic = Topic(stage, direction, model)
    with ledger_in(folder, run=run) as ledger:
        ledger.add(key, dollars, topic, "reserved")
        ledger.answer(key, Reply("yes", "stop", 10, 2, dollars, model))


async def send_once(ledger: Ledger, key: str, send: Send, *, worst: float = 1.0, model: str = "m") -> Call:
    """Send a question, without another attempt, and write its reply into a ledger."""
    sender = Sender(model, ledger, RequestOptions(max_error_rate=1.0), Retries(attempts=1))
    call, _ = await sender.ask(Question(key, Topic("audit", "i2t", model), send, lambda: worst))
    return call
