"""`repair-hf demo`: repair a small retriever end to end in the toy world, and compare with fine-tuning without repair.

`runs/demo/` gets every stage's folder, and one table (`table.md`, `metrics.json`): what each method gains, and what it
keeps of what the base knew.

The demo runs the commands that a user would run for a real model, and prints each. If it is killed, the same command
resumes. The world is a toy: its numbers show whether the method works, and say nothing about photographs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from repair_hf.cli.evaluate import TestPairsOptions
from repair_hf.cli.subcommands import perform, print_table, suggest
from repair_hf.cli.world import BuildOptions
from repair_hf.evaluation.options import CompositionalOptions, EvaluateOptions
from repair_hf.mining.options import MiningOptions
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import Bounded, PairsOptions, StageOptions, flags, opt
from repair_hf.runtime.processes import refuse_several
from repair_hf.runtime.run_folder import write_atomically, write_json
from repair_hf.runtime.stage import Stage
from repair_hf.synthesis.options import EditorOptions, LLMOptions, SynthesizeOptions
from repair_hf.training.options import TrainOptions

EPILOG = """example:
  repair-hf demo"""

BASE = "world/base"
RATE = 3e-4
METHODS: dict[str, dict[str, Any]] = {  # method -> options of its training; those named `repair` have records
    "plain": {},
    "repair": {},
    "repair_paper": {"paper": True},
}
BLEND = 0.8  # weight of the tuned model
TITLES = {"plain": "plain", "repair": "repair", "repair_paper": "repair, paper's choice"}
MEASURED = ("i2t_R@1", "t2i_R@1", "web_i2t_R@1", "web_t2i_R@1")
FOOTER = (
    "R@1 in %: an annotated positive is first. web: R@1 on pictures of the domain that the base was pretrained on, "
    "which no method trains on: what is kept. Compare blended models with blended ones."
)

# Options of each stage; `web` is the number of pictures of the base's own domain. With 1,000 test pictures and 500 of
# the web, the interval of a difference between two methods is at most 1.5 points to each side, in R@1 and in what is
# kept. No stage reads the validation split.
SIZES: dict[str, dict[str, Any]] = {
    "full": {
        "world": {"train": 800, "validation": 1, "test": 1000},
        "web": 500,
        "mining": {"max_queries": 5000, "d_i2t": 3},
        "training": {"num_train_epochs": 2.0, "per_device_train_batch_size": 128},
    },
    "tiny": {
        "world": {"train": 60, "validation": 20, "test": 30},
        "web": 30,
        "mining": {"max_queries": 40, "d_i2t": 2},
        "training": {"num_train_epochs": 0.2, "per_device_train_batch_size": 16},
    },
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
    stage = Stage("demo", options.output, inputs={"size": options.size}, words=flags({"size": options.size}))

    def work(_: Path | None) -> dict[str, Any]:
        stage.begin()
        return _run(options)

    with loading_once():
        stage.run(work, again=True)


def _run(options: DemoOptions) -> dict[str, Any]:
    from repair_hf.training.config import RepairConfig

    start = time.perf_counter()
    folder, size = Path(options.output), SIZES[options.size]
    world, records = str(folder / "world"), str(folder / "records")
    pairs, test = PairsOptions(world), TestPairsOptions(world)
    perform("world build", BuildOptions(world, **size["world"]))
    mining = MiningOptions(model=BASE, cache_images=True, **size["mining"])
    perform("mine", pairs, StageOptions(str(folder / "failures")), mining)
    erring = LLMOptions("world/erring"), EditorOptions("world/erring")
    repair = SynthesizeOptions(failures=str(folder / "failures"), model=BASE)
    perform("synthesize", pairs, StageOptions(records), *erring, repair)

    web = str(folder / "web")
    perform("world build", BuildOptions(web, domain="web", train=1, validation=1, test=size["web"], seed=1))
    for method, own in METHODS.items():
        training = TrainOptions(model=BASE, records=[records] if method.startswith("repair") else None)
        config = RepairConfig(**{"seed": 0, "learning_rate": RATE} | size["training"] | own)
        perform("train", pairs, StageOptions(_trained(folder, method)), training, config)
    models = [BASE, *(_trained(folder, method) for method in METHODS)]
    evaluation = EvaluateOptions(model=models, blends=[BLEND, 1.0], also=[web], cache_images=True)
    perform("evaluate", evaluation, test, StageOptions(str(folder / "evaluate")), CompositionalOptions())
    _report(folder)
    seconds = time.perf_counter() - start
    print(f"\nthe demo took {seconds:,.0f} s   -> {folder}")
    suggest("show", records)
    return {"seconds": seconds}


def _trained(folder: Path, method: str) -> str:
    return str(folder / "train" / method)


def _report(folder: Path) -> None:
    """Print and write the table of methods, each unblended and blended."""
    from repair_hf.analysis.tables import markdown, mean_rows

    metrics = read_json(folder / "evaluate" / "metrics.json", needs=("base",))
    rows = {"random": metrics["base"]["random"], "base": metrics["base"]}
    for method, title in TITLES.items():
        trained = read_json(folder / "train" / method / "summary.json", needs=("seconds", "steps"))
        rows[title] = metrics[f"{method}@1"] | {name: trained[name] for name in ("seconds", "steps")}
        rows[f"{title}, blend {BLEND:g}"] = metrics[f"{method}@{BLEND:g}"]
    table = mean_rows("method", {title: [row] for title, row in rows.items()}, [*MEASURED, "seconds", "steps"])
    sizes = "{n_images:,} images, {n_texts:,} texts. ".format(**metrics["base"])
    print_table(*table)
    print(f"{sizes}{FOOTER}")
    write_atomically(folder / "table.md", f"{markdown(*table)}\n\n{sizes}{FOOTER}\n")
    write_json(folder / "metrics.json", rows)
