"""`repair-hf bench`: how fast the parts are, each beside the least that could do its work.

In:  sizes.
Out: `llm`: requests per second of the LLM client (journal, limits, validation) over those of a bare loop of LiteLLM calls, against the
     same server on loopback. `train`: a training step with grids over the plain step of transformers' example. `embed`: images and captions per second
     over those of a plain loop of transformers. `mine`: mining over the bare
     product of the same matrix. `evaluate`: all metrics and their intervals beside CLIP_benchmark's own code.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any

from repair_hf.bench.options import (
    EmbedBenchOptions,
    EvaluateBenchOptions,
    LLMBenchOptions,
    MineBenchOptions,
    TrainBenchOptions,
)
from repair_hf.runtime.options import UserError

EPILOG = """examples:
  repair-hf bench llm
  repair-hf bench llm --requests 1000 --image-bytes 200000
  repair-hf bench train --architecture vit-b-32 --batch 16 --steps 2
  repair-hf bench train --rows grids chunks --chunk-batch 1024   # the memory of a large batch by gradient caching
  repair-hf bench embed --architecture vit-b-32 --images 256 --texts 2000
  repair-hf bench mine
  repair-hf bench mine --paper --repeat 1
  repair-hf bench mine --growth --repeat 1
  repair-hf bench evaluate --paper   # in the environment of `make crosscheck`, or without its last row"""


def train(options: TrainBenchOptions) -> None:
    """Measure a training step with grids beside the plain step of transformers' run_clip.py."""
    from repair_hf.bench.train import LEAST_CORPUS, REFERENCE, ROWS, SLOW, Found, Load, measure

    _refuse_unknown(options.rows, ROWS)
    device = _device(options.device)
    if options.precision == "fp16" and device == "cpu":
        raise UserError("`precision` fp16 needs a GPU; use bf16 or fp32.")
    wanted = {REFERENCE, *options.rows} | (set(ROWS) - {SLOW} if "all" in options.rows else set())
    rows = [row for row in ROWS if row in wanted]
    largest = max(options.batch, options.chunk_batch if "chunks" in rows else 0)
    if options.corpus < (least := max(2 * largest, LEAST_CORPUS)):
        raise UserError(
            f"`corpus` must be at least {least}, got {options.corpus}: two images for each of the {largest} anchors of a step, and "
            f"{LEAST_CORPUS} for each to have its nearest. Give more, or a smaller batch."
        )
    load = Load(
        architecture=options.architecture,
        batch=options.batch,
        corpus=options.corpus,
        steps=options.steps,
        precision=options.precision,
        chunk_size=options.chunk_size,
        chunk_batch=options.chunk_batch,
        device=device,
    )
    best: dict[str, Found] = {}
    for found in measure(load, rows, options.rounds):
        best |= {row: one for row, one in found.items() if row not in best or one.step < best[row].step}
    print(
        f"{'':<12}{'batch':>6}{'ms a step':>11}{'ratio':>7}{'images':>8}{'texts':>7}{'tokens':>8}{'waiting':>9}{'memory':>10}"
    )
    for row, one in best.items():
        ratio = one.step / one.batch * best[REFERENCE].batch / best[REFERENCE].step
        print(
            f"{row:<12}{one.batch:>6,}{one.step * 1000:>11,.0f}{ratio:>7.2f}{one.images:>8.2f}{one.texts:>7.2f}{one.tokens:>8.1f}"
            f"{one.waiting:>9.1%}{one.memory / 2**20:>7,.0f} MiB"
        )
    print("\n".join(f"{row}: {ROWS[row]}" for row in rows))
    print(
        f"{options.architecture}, {options.precision} on {device}; ratio: of the time for an anchor; images and texts: encoded for each "
        "anchor; tokens: of a caption with its padding; waiting: for data; memory: peak beyond model and data. Every grid is full."
    )


def mine(options: MineBenchOptions) -> None:
    """Measure mining and evaluation beside the bare product, FAISS and sentence-transformers."""
    import torch

    from repair_hf.bench.mine import LIMIT, OTHERS, ROWS, Load, available, measure

    _refuse_unknown(options.rows, ROWS)
    everything = set(ROWS) - set(OTHERS if options.growth else ())
    wanted = set(options.rows) | (everything if "all" in options.rows else set())
    rows = [row for row in ROWS if row == LIMIT or row in wanted]
    per_pair: dict[str, list[float]] = {row: [] for row in rows}  # of each size, nanoseconds
    for images, texts in options.sizes:
        rounds = list(measure(Load(images, texts, options.dim, options.k), rows, options.repeat))
        print(f"{images:,} images x {texts:,} captions")
        print(f"{'':<16}{'seconds':>9}{'ratio':>7}{'busy':>9}{'ratio':>7}{'memory':>12}")
        for row in rows:
            if not available(row):
                print(f"{row:<16}{'not installed':>16}")
                continue
            seconds, busy = (median(getattr(one[row], name) for one in rounds) for name in ("seconds", "busy"))
            by_clock = median(one[row].seconds / one[LIMIT].seconds for one in rounds)
            by_work = median(one[row].busy / one[LIMIT].busy for one in rounds)
            memory = max(one[row].memory for one in rounds) / 2**20
            print(
                f"{row:<16}{seconds:>9.2f}{by_clock:>7.2f}{busy:>9.2f}{by_work:>7.2f}{memory:>8,.0f} MiB", flush=True
            )
            per_pair[row].append(1e9 * seconds / (images * texts))
    if options.growth:
        print("nanoseconds for each pair, size by size, and the last over the first")
        for row, found in per_pair.items():
            if not found:  # not installed
                continue
            print(f"{row:<16}" + "".join(f"{one:>9.2f}" for one in found) + f"{found[-1] / found[0]:>7.2f}")
    print("\n".join(f"{row}: {ROWS[row]}" for row in rows))
    print(
        f"{options.dim} numbers a vector, k {options.k}, {torch.get_num_threads()} threads; ratio: to the product of the same round, median of "
        f"{options.repeat}; busy: seconds that threads were at work; memory: most that the process grew by, and rows after the first "
        "reuse what earlier ones left"
    )


def evaluate(options: EvaluateBenchOptions) -> None:
    """Measure retrieval evaluation beside CLIP_benchmark's own code."""
    import torch

    from repair_hf.bench.evaluate import MISSING, REFERENCE, ROWS, Load, available, measure

    load = Load(options.images, options.texts, options.dim, options.resamples)
    rounds = list(measure(load, list(ROWS), options.repeat))
    has_reference = available(REFERENCE)
    print(f"{options.images:,} images x {options.texts:,} captions")
    print(f"{'':<20}{'seconds':>9}{'ratio':>7}{'busy':>9}{'ratio':>7}{'memory':>12}{'ratio':>7}{'apart':>10}")
    for row in rounds[0]:
        line = f"{row:<20}"
        for name in ("seconds", "busy", "memory"):
            own = [getattr(one[row].took, name) for one in rounds]
            theirs = [getattr(one[REFERENCE].took, name) for one in rounds if has_reference]
            if name == "memory":  # later rounds reuse what earlier ones left
                own, theirs = [max(own)], theirs and [max(theirs)]
            line += f"{own[0] / 2**20:>8,.0f} MiB" if name == "memory" else f"{median(own):>9.2f}"
            ratios = [mine / other for mine, other in zip(own, theirs, strict=has_reference) if other]
            line += f"{median(ratios):>7.2f}" if ratios else f"{'–':>7}"
        print(line + (f"{rounds[0][row].apart(rounds[0][REFERENCE]):>10.1e}" if has_reference else f"{'–':>10}"))
    if not has_reference:
        print(f"{REFERENCE:<20}{MISSING}")
    print("\n".join(f"{row}: {what}" for row, what in ROWS.items()))
    print(
        f"{options.dim} numbers a vector, {options.resamples:,} resamples, {torch.get_num_threads()} threads; ratio: to {REFERENCE} in the same round, median of "
        f"{options.repeat}; busy: seconds that threads were at work; memory: most that the process grew by, and rows after the first reuse what earlier ones left; apart: largest difference of a Recall@K"
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


def embed(options: EmbedBenchOptions) -> None:
    """Measure embedding beside a plain loop of transformers."""
    from repair_hf.bench.embed import REFERENCE, ROWS, Found, Load, measure

    _refuse_unknown(options.rows, ROWS)
    device = _device(options.device)
    rows = [row for row in ROWS if row == REFERENCE or {"all", row} & set(options.rows)]
    load = Load(options.architecture, options.images, options.texts, options.batch, device)
    best: dict[str, Found] = {}
    for found in measure(load, rows, options.rounds):
        for row, one in found.items():
            best[row] = one.better(best.get(row, one))
    print(f"{'':<12}{'images/s':>10}{'ratio':>7}{'captions/s':>12}{'ratio':>7}{'apart':>10}")
    for row, one in best.items():
        ratios = one.images / best[REFERENCE].images, one.texts / best[REFERENCE].texts
        print(f"{row:<12}{one.images:>10,.1f}{ratios[0]:>7.2f}{one.texts:>12,.1f}{ratios[1]:>7.2f}{one.apart:>10.1e}")
    print("\n".join(f"{row}: {ROWS[row]}" for row in rows))
    print(
        f"{options.architecture}, batches of {options.batch}, {options.images:,} JPEGs of 500 x 375, {options.texts:,} captions, on {device}; "
        "ratio: of the speed; apart: largest difference of a vector's number from the loop's"
    )


def _refuse_unknown(rows: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted({*rows} - {"all", *known}):
        raise UserError(f"`rows` takes {', '.join(known)} or all, got {', '.join(unknown)}.")


def _device(wanted: str) -> str:
    """`auto` is the GPU if there is one."""
    import torch

    has_gpu = torch.cuda.is_available()
    if wanted == "cuda" and not has_gpu:
        raise UserError("`device` is cuda, and torch finds no GPU; use cpu.")
    return wanted if wanted != "auto" else "cuda" if has_gpu else "cpu"


def _told(rate: Any) -> str:
    return f"{rate.per_second:,.0f}/s {rate.busy_ms:6.2f} ms"


ACTIONS = {
    "train": ((TrainBenchOptions,), train),
    "embed": ((EmbedBenchOptions,), embed),
    "llm": ((LLMBenchOptions,), llm),
    "mine": ((MineBenchOptions,), mine),
    "evaluate": ((EvaluateBenchOptions,), evaluate),
}
