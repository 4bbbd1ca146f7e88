"""`repair-hf bench`: how fast the parts are, each beside the least that could do its work.

In:  sizes.
Out: `llm`: requests per second of the LLM client (journal, limits, validation) over those of a bare loop of LiteLLM calls, against the
     same server on loopback. `train`: a training step with grids over the plain step of transformers' example. `mine`: mining over the bare
     product of the same matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from repair_hf.options import UserError, opt

EPILOG = """examples:
  repair-hf bench llm
  repair-hf bench llm --requests 1000 --image-bytes 200000
  repair-hf bench train --architecture vit-b-32 --batch 16 --steps 2
  repair-hf bench mine
  repair-hf bench mine --images 29000 --texts 145000 --repeat 2"""


@dataclass
class LLMBenchOptions:
    """The load."""

    _argument_group_name = "bench llm"

    requests: int = opt(500, "Requests of each of the two in each round.")
    concurrency: int = opt(64, "Requests at once.")
    latency: float = opt(0.02, "Seconds that the server takes for each request.")
    image_bytes: int = opt(20_000, "Size of the picture that each request carries.")
    rounds: int = opt(8, "Rounds that are counted; one more goes before.")

    def __post_init__(self) -> None:
        _check_counts(self, "requests", "concurrency", "image_bytes", "rounds")
        if self.latency < 0:
            raise UserError(f"`latency` must not be negative, got {self.latency}.")


@dataclass
class TrainBenchOptions:
    """The training step."""

    _argument_group_name = "bench train"

    architecture: Literal["world", "vit-b-32", "vit-l-14"] = opt(
        "world", "The toy world's retriever, or CLIP's sizes with random weights."
    )
    batch: int = opt(128, "Anchors in a step.")
    steps: int = opt(8, "Steps that are counted; two more go before.")
    rounds: int = opt(2, "Times that each row is measured; the table shows the fastest.")
    precision: Literal["fp32", "bf16", "fp16"] = opt("fp32", "Of the forward and backward; fp16 needs a GPU.")
    chunk_size: int = opt(64, "Images and captions at once in the row of gradient caching.")
    device: Literal["auto", "cpu", "cuda"] = opt("auto", "Where to run; auto takes the GPU if there is one.")
    rows: list[str] = opt(["all"], "Which rows to measure, by their names.")

    def __post_init__(self) -> None:
        _check_counts(self, "batch", "steps", "rounds", "chunk_size")


@dataclass
class MineBenchOptions:
    """The matrix."""

    _argument_group_name = "bench mine"

    images: int = opt(5000, "Images; the paper's corpus has 29,000.")
    texts: int = opt(25_000, "Captions; the paper's corpus has 145,000.")
    dim: int = opt(512, "Length of a vector.")
    k: int = opt(100, "False positives sought for each query of both directions.")
    repeat: int = opt(3, "Times that each row is measured; the table shows the least time and the most memory.")
    rows: list[str] = opt(["all"], "Which rows to measure, by their names.")

    def __post_init__(self) -> None:
        _check_counts(self, "images", "texts", "dim", "k", "repeat")
        if self.texts < self.images:
            raise UserError(
                f"`texts` must be at least `images` ({self.images}): each has a caption; got {self.texts}."
            )
        if self.k >= self.images:
            raise UserError(f"`k` must be less than `images` ({self.images}), got {self.k}.")


def train(options: TrainBenchOptions) -> None:
    """Measure a training step with grids beside the plain step of transformers' run_clip.py."""
    import torch

    from repair_hf.bench.train import REFERENCE, ROWS, Found, Load, measure

    if unknown := sorted(set(options.rows) - {"all", *ROWS}):
        raise UserError(f"`rows` takes {', '.join(ROWS)} or all, got {', '.join(unknown)}.")
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("`device` is cuda, and torch finds no GPU; use cpu.")
    if options.precision == "fp16" and device == "cpu":
        raise UserError("`precision` fp16 needs a GPU; use bf16 or fp32.")
    rows = [row for row in ROWS if row == REFERENCE or {"all", row} & set(options.rows)]
    load = Load(options.architecture, options.batch, options.steps, options.precision, options.chunk_size, device)
    best: dict[str, Found] = {}
    for found in measure(load, rows, options.rounds):
        best |= {row: one for row, one in found.items() if row not in best or one.step < best[row].step}
    print(f"{'':<12}{'ms a step':>10}{'ratio':>7}{'images':>8}{'texts':>7}{'tokens':>8}{'waiting':>9}{'memory':>10}")
    for row, one in best.items():
        ratio = one.step / best[REFERENCE].step
        print(
            f"{row:<12}{one.step * 1000:>10,.0f}{ratio:>7.2f}{one.images:>8.2f}{one.texts:>7.2f}{one.tokens:>8.1f}"
            f"{one.waiting:>9.1%}{one.memory / 2**20:>7,.0f} MiB"
        )
    print("\n".join(f"{row}: {ROWS[row]}" for row in rows))
    print(
        f"{options.architecture}, batch {options.batch}, {options.precision} on {device}; images and texts: encoded for each "
        "anchor; tokens: of a caption with its padding; waiting: for data; memory: peak beyond model and data. Every grid is full."
    )


def mine(options: MineBenchOptions) -> None:
    """Measure mining and evaluation beside the bare product, FAISS and sentence-transformers."""
    import torch

    from repair_hf.bench.mine import LIMIT, ROWS, Found, Load, available, measure

    if unknown := sorted(set(options.rows) - {"all", *ROWS}):
        raise UserError(f"`rows` takes {', '.join(ROWS)} or all, got {', '.join(unknown)}.")
    rows = [row for row in ROWS if row == LIMIT or {"all", row} & set(options.rows)]
    best: dict[str, Found] = {}
    for found in measure(Load(options.images, options.texts, options.dim, options.k), rows, options.repeat):
        for row, one in found.items():
            seen = best.get(row, one)
            best[row] = Found(min(seen.seconds, one.seconds), max(seen.memory, one.memory))
    print(f"{'':<16}{'seconds':>9}{'ratio':>7}{'memory':>12}")
    for row in rows:
        if not available(row):
            print(f"{row:<16}{'not installed':>16}")
            continue
        ratio = best[row].seconds / best[LIMIT].seconds
        print(f"{row:<16}{best[row].seconds:>9.2f}{ratio:>7.2f}{best[row].memory / 2**20:>8,.0f} MiB")
    print("\n".join(f"{row}: {ROWS[row]}" for row in rows))
    print(
        f"{options.images:,} images x {options.texts:,} captions of {options.dim} numbers, k {options.k}, {torch.get_num_threads()} threads; "
        "memory: most that the process grew by; rows after the first reuse what earlier ones left"
    )


def llm(options: LLMBenchOptions) -> None:
    """Measure the LLM client beside a bare loop of LiteLLM calls."""
    from repair_hf.bench.llm import measure

    print(f"{'round':<8}{'bare loop':>20}{'whole client':>20}{'ratio':>8}")
    found = []
    for number, one in enumerate(measure(**vars(options)), start=1):
        found.append(one)
        print(f"{number:<8}{_told(one.bare):>20}{_told(one.whole):>20}{one.ratio:>8.2f}", flush=True)
    print(f"median ratio of requests/s: {median(one.ratio for one in found):.2f}")
    print(
        f"{options.requests:,} requests a round, {options.concurrency} at once, {options.image_bytes:,} bytes a picture, "
        f"{options.latency * 1000:g} ms of the server's own; ms: how long a request kept this process busy"
    )


def _told(rate: Any) -> str:
    return f"{rate.per_second:,.0f}/s {rate.busy_ms:6.2f} ms"


def _check_counts(options: Any, *names: str) -> None:
    for name in names:
        if vars(options)[name] < 1:
            raise UserError(f"`{name}` must be at least 1, got {vars(options)[name]}.")


ACTIONS = {
    "train": ((TrainBenchOptions,), train),
    "llm": ((LLMBenchOptions,), llm),
    "mine": ((MineBenchOptions,), mine),
}
