"""`repair-hf demo`: repair a small retriever end to end in the toy world, and compare with fine-tuning without repair.

`runs/demo/` gets every stage's folder, and one table of five methods (`table.md`, `metrics.json`).

The demo runs the commands that a user would run for a real model, and prints each. If it is killed, the same command
resumes. The world is a toy: its numbers show whether the method works, and say nothing about photographs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from repair_hf.cli.evaluate import NOTE, TestPairsOptions
from repair_hf.cli.subcommands import perform, print_table, suggest
from repair_hf.cli.world import BuildOptions
from repair_hf.evaluation.options import CompositionalOptions, EvaluateOptions
from repair_hf.mining.options import MiningOptions
from repair_hf.runtime.files import read_json
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import Bounded, PairsOptions, StageOptions, opt
from repair_hf.runtime.processes import refuse_several
from repair_hf.runtime.run_folder import write_atomically, write_json
from repair_hf.synthesis.options import EditorOptions, LLMOptions, SynthesizeOptions
from repair_hf.training.options import TrainOptions

EPILOG = """example:
  repair-hf demo"""

BASE = "world/base"
METHODS: dict[str, dict[str, Any] | None] = {  # arguments of training on the records; None is training without them
    "plain": None,
    "repair": {},
    "repair_paper": {"paper": True},
    "plain_same_compute": None,  # encodes as much as `repair`
}
ORDER = ("base", "plain", "plain_same_compute", "repair", "repair_paper")
NEAR_MISSES = [f"near_misses_{way}_{measure}" for way in ("i2t", "t2i") for measure in ("truth", "edit")]
FOOTER = (
    "R@K in %: an annotated positive is in the top K. MRR: mean of 1 / rank of the best positive. Ties are ranked "
    "pessimistically."
)


@dataclass(frozen=True)
class Size:
    """How large a demo is."""

    world: dict[str, Any]
    queries: int  # at most, mined and repaired in each direction
    d_i2t: int  # false positive captions of each image
    epochs: float
    batch: int
    near_misses: int  # queries of the test split, at most, that are mined in each direction


SIZES = {
    "full": Size({"train": 1000, "validation": 100, "test": 1000}, 5000, 5, 2.0, 128, 500),
    "tiny": Size({"train": 60, "validation": 20, "test": 30}, 40, 2, 0.2, 16, 100),
}


@dataclass
class DemoOptions(Bounded):
    output: str = opt("runs/demo", "Folder of the demo.")
    size: Literal["full", "tiny"] = opt("full", "`tiny` runs every part in under a minute; its numbers mean nothing.")


OPTIONS = (DemoOptions,)


def run(options: DemoOptions) -> None:
    """Draw the world, mine, synthesize, train each method, evaluate, and compare."""
    from repair_hf.pairs.dataset import loading_once

    refuse_several("demo")
    with one_writer(options.output), loading_once():
        _run(options)


def _run(options: DemoOptions) -> None:
    from repair_hf.training.config import RepairConfig

    start = time.perf_counter()
    folder, size = Path(options.output), SIZES[options.size]
    world, records = str(folder / "world"), str(folder / "records")
    pairs, test = PairsOptions(world), TestPairsOptions(world)
    perform("world build", BuildOptions(world, **size.world))
    mining = MiningOptions(model=BASE, max_queries=size.queries, d_i2t=size.d_i2t, cache_images=True)
    perform("mine", pairs, StageOptions(str(folder / "failures")), mining)
    erring = LLMOptions("world/erring"), EditorOptions("world/erring")
    repair = SynthesizeOptions(failures=str(folder / "failures"), model=BASE)
    perform("synthesize", pairs, StageOptions(records), *erring, repair)

    near_misses = _find_near_misses(folder, size)
    for method, choices in METHODS.items():
        settings = dict[str, Any](num_train_epochs=size.epochs)
        if method == "plain_same_compute":
            settings = {"max_steps": _same_compute_steps(folder)}
        settings |= {"per_device_train_batch_size": size.batch, "learning_rate": 3e-4, "seed": 0, **(choices or {})}
        wanted = TrainOptions(model=BASE, records=None if choices is None else [records])
        trained = StageOptions(str(folder / "train" / method))
        perform("train", pairs, trained, wanted, RepairConfig(**settings))
    models = [BASE, *(str(folder / "train" / method) for method in ORDER[1:])]
    measured = EvaluateOptions(model=models, near_misses=[near_misses], cache_images=True)
    place = StageOptions(str(folder / "evaluate"))
    perform("evaluate", measured, test, place, CompositionalOptions())
    _report(folder)
    print(f"\nthe demo took {time.perf_counter() - start:,.0f} s   -> {folder}")
    suggest("show", records)
    suggest("figure", "grid", str(folder), "--before", BASE, "--after", str(folder / "train" / "repair"))


def _find_near_misses(folder: Path, size: Size) -> str:
    """Mine the test split, and repair the failures there by an LLM and an editor that do not err."""
    test, failures = PairsOptions(str(folder / "world"), split="test"), str(folder / "test-failures")
    mining = MiningOptions(model=BASE, max_queries=size.near_misses, d_i2t=1, cache_images=True)
    perform("mine", test, StageOptions(failures), mining)
    models = LLMOptions("world/oracle"), EditorOptions("world")
    repair = SynthesizeOptions(failures=failures, model=BASE, failures_only=True, candidates=1)
    place = StageOptions(str(folder / "near-misses"))
    perform("synthesize", test, place, *models, repair)
    return str(folder / "near-misses")


def _same_compute_steps(folder: Path) -> int:
    """Return how many plain steps encode as much as `repair` did, as the study counts it."""
    from repair_hf.study.plan import compute_ratio

    repair, plain = (
        read_json(folder / "train" / name / "summary.json", needs=("images_per_step", "texts_per_step"))
        for name in ("repair", "plain")
    )
    return round(repair["steps"] * compute_ratio(repair, plain))


def _report(folder: Path) -> None:
    """Print and write the table of methods, with their near misses in percent."""
    from repair_hf.analysis.tables import SIDES, markdown, mean_rows

    rows = {}
    for method in ORDER:
        rows[method] = read_json(folder / "evaluate" / method / "metrics.json", needs=("i2t_R@1", "t2i_R@1"))
        if method != "base":
            trained = read_json(folder / "train" / method / "summary.json", needs=("seconds", "steps"))
            rows[method] |= {"seconds": trained["seconds"], "steps": trained["steps"]}
    seeds, names = (
        {method: [row] for method, row in rows.items()},
        [name for name in NEAR_MISSES if name in rows["base"]],
    )
    measured = [f"{side}_{kind}" for side in SIDES for kind in ("R@1", "R@5", "R@10", "MRR")]
    sizes = "{n_images:,} images, {n_texts:,} texts. ".format(**rows["base"])
    metrics = mean_rows("method", seeds, [*measured, "seconds", "steps"])
    tables = (metrics, sizes + FOOTER), (mean_rows("near misses", seeds, names), NOTE)
    for table, footer in tables:
        print_table(*table)
        print(footer)
    written = (f"{markdown(*table)}\n\n{footer}" for table, footer in tables)
    write_atomically(folder / "table.md", "\n\n".join(written) + "\n")
    write_json(folder / "metrics.json", rows)
