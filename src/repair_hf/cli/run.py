"""`repair-hf run`: all stages of a recipe folder, round after round, for as long as another round helps.

In:  a folder with `mine.yaml`, `synthesize.yaml`, `train.yaml` and `evaluate.yaml`; where it has a `world.yaml` too, the toy world of
     that recipe is drawn first.
Out: `base/` (the retriever before any repair, evaluated), `round-1/`, `round-2/` ... each with `failures`, `records`, `retriever` and
     `evaluate`; and `rounds.json`, the table of rounds.

A round mines with the newest checkpoint, repairs what no earlier round has taken up, trains that checkpoint further on the records of all
rounds together, and is evaluated. As the paper has it, a round is the next stage of training of one retriever; it does not start anew
from the base. So a later round has been trained for longer too: to tell its records' share of a gain, compare with as many steps on the
records of the first round.

The command types what a user would type, each stage with its recipe and with flags for what differs by round. It can be killed at any
point: the same command passes over the stages that are finished and goes on.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from repair_hf.runtime.options import UserError, flags, need, opt, parse
from repair_hf.runtime.processes import refuse_several
from repair_hf.runtime.subcommands import print_command, run_command, suggest

EPILOG = """examples:
  repair-hf run recipes/toy --rounds 3
  repair-hf run recipes/toy --rounds 3 --split validation --output runs/toy-rounds
  repair-hf run recipes/toy --rounds 3 --dry-run

Each stage takes its recipe of that folder; models, records and outputs are set by the round. --rounds of a finished run may be raised."""

ALL_RECORDS = "round-*/records"
STAGES = ("mine", "synthesize", "train", "evaluate")


@dataclass
class RunOptions:
    """Which recipes, and how often."""

    _argument_group_name = "run"

    recipe: str = need("Folder of recipes: mine.yaml, synthesize.yaml, train.yaml, evaluate.yaml.")
    output: str | None = opt(None, "Folder of all rounds; runs/<name of the recipe's folder>-rounds by default.")
    rounds: int = opt(
        1, "Rounds at most; `max_usd` and `max_calls` in synthesize.yaml are ceilings of all rounds together."
    )
    min_gain: float = opt(
        0.1, "Stop after a round whose R@1, mean of both directions, rose by fewer points than these."
    )
    split: str | None = opt(
        None,
        "Split that rounds are judged on; the one in evaluate.yaml by default. To choose by the test split flatters.",
    )
    dry_run: bool = opt(False, "Print the commands that would run, then stop.")

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise UserError(f"`rounds` must be at least 1, got {self.rounds}.")


OPTIONS = (RunOptions,)


def run(options: RunOptions) -> None:
    """Mine, synthesize, train and evaluate, until the rounds are done or no longer help."""
    refuse_several("run")
    recipe = Path(options.recipe)
    _check(recipe)
    folder = Path(options.output or Path("runs") / f"{recipe.resolve().name}-rounds")
    base, split = _read(recipe, "mine").model, options.split or _read(recipe, "evaluate").split
    stage = _Stages(recipe, split, print_command if options.dry_run else run_command)
    if (recipe / "world.yaml").is_file():
        stage.type("world", "build", "--config", str(recipe / "world.yaml"))
    stage.evaluate(base, folder / "base")
    if options.dry_run:
        for number in range(1, options.rounds + 1):
            stage.repair(folder, number, base)
            stage.train(folder, number, base)
        return
    _run_rounds(stage, folder, base, options)


def _run_rounds(stage: _Stages, folder: Path, base: str, options: RunOptions) -> None:
    from repair_hf.llm.budget import BudgetSpent
    from repair_hf.runtime.run_folder import RunStopped, write_atomically
    from repair_hf.synthesis.reuse import inherit
    from repair_hf.synthesis.rounds import mean_gain, paid_by

    rounds, why = [_measured(folder / "base", 0, {"i2t": 0, "t2i": 0})], f"all {options.rounds} rounds are done"
    alone, first = Path(_read(stage.recipe, "synthesize").output), _round(folder, 1) / "records"
    if inherit([alone], first):  # it asks what the recipe asks when it is run by itself, which may be paid for already
        print(f"{first} begins with the answers and images of {alone}.")
    for number in range(1, options.rounds + 1):
        try:
            stage.repair(folder, number, base)
        except BudgetSpent as error:
            dollars, calls = paid_by(folder.glob(ALL_RECORDS))
            raise RunStopped(
                f"A ceiling of {stage.recipe / 'synthesize.yaml'} is reached in round {number}: {calls:,} LLM answers and ${dollars:.4f} "
                "are paid, all rounds together. Every answer so far is kept; with a higher `max_usd` or `max_calls` there the same "
                "command goes on."
            ) from error
        if not sum(_new_records(folder, number).values()):
            why = f"round {number} brought no new record"
            break
        stage.train(folder, number, base)
        rounds.append(_measured(_round(folder, number) / "evaluate", number, _new_records(folder, number)))
        gain = mean_gain(rounds[-2]["metrics"], rounds[-1]["metrics"])
        rounds[-1]["gain"] = gain
        if gain < options.min_gain:
            why = f"round {number} gained {gain:+.2f} points, fewer than --min-gain {options.min_gain:g}"
            break
    told = {"recipe": options.recipe, "split": stage.split, "min_gain": options.min_gain, "stopped": why}
    write_atomically(folder / "rounds.json", json.dumps(told | {"rounds": rounds}, indent=2) + "\n")
    _print_rounds(rounds)
    print(f"judged on the split `{stage.split}`; stopped: {why}   -> {folder}")
    if stage.split == "test":
        print("The number of rounds was chosen by the test split, which flatters it; --split validation does not.")
    suggest("show", str(folder / "round-1" / "records"))


class _Stages:
    """Types the commands of a recipe folder.

    Args:
        recipe: The folder.
        split: That is evaluated on.
        type: Takes the words of a command; runs or prints them.
    """

    def __init__(self, recipe: Path, split: str, type: Callable[..., None]) -> None:
        self.recipe, self.split, self.type = recipe, split, type

    def repair(self, folder: Path, number: int, base: str) -> None:
        """Mine with the newest checkpoint, and make records of what is new."""
        here, newest, earlier = _round(folder, number), _newest(folder, number, base), _records(folder, number - 1)
        self._stage("mine", newest, here / "failures")
        words = ["--earlier-rounds", *earlier] if earlier else []
        words += self._ceilings(here / "records")
        self._stage("synthesize", newest, here / "records", "--failures", str(here / "failures"), *words)

    def train(self, folder: Path, number: int, base: str) -> None:
        """Train the newest checkpoint on the records of all rounds, and evaluate it."""
        here, newest = _round(folder, number), _newest(folder, number, base)
        self._stage("train", newest, here / "retriever", "--records", *_records(folder, number))
        self.evaluate(str(here / "retriever"), here / "evaluate")

    def evaluate(self, model: str, output: Path) -> None:
        """Measure a retriever."""
        self._stage("evaluate", model, output, "--split", self.split)

    def _ceilings(self, records: Path) -> list[str]:
        """Flags for what other rounds leave of the recipe's ceilings; none while no other has begun."""
        others = [path for path in records.parents[1].glob(ALL_RECORDS) if path != records]
        if not others:
            return []
        from repair_hf.synthesis.rounds import remaining_ceilings

        recipe = _read(self.recipe, "synthesize")
        return flags(remaining_ceilings(recipe.max_usd, recipe.max_calls, others))

    def _stage(self, name: str, model: str, output: Path, *words: str) -> None:
        config = ["--config", str(self.recipe / f"{name}.yaml")]
        self.type(name, *config, "--model", model, *words, "--output", str(output))


def _check(recipe: Path) -> None:
    if missing := [f"{name}.yaml" for name in STAGES if not (recipe / f"{name}.yaml").is_file()]:
        raise UserError(
            f"{recipe} lacks {', '.join(missing)}; give a folder with a recipe of each stage, such as recipes/toy."
        )
    for name in STAGES:  # a misspelt key in the last recipe is better known before the first hour
        _read(recipe, name)


def _read(recipe: Path, name: str) -> Any:
    """All options of a recipe as one object."""
    module = importlib.import_module(f"repair_hf.cli.{name}")
    values = {}
    for each in parse(module.OPTIONS, ["--config", str(recipe / f"{name}.yaml")], f"repair-hf {name}"):
        values |= vars(each)
    return SimpleNamespace(**values)


def _round(folder: Path, number: int) -> Path:
    return folder / f"round-{number}"


def _newest(folder: Path, number: int, base: str) -> str:
    """The retriever that a round starts from."""
    return base if number == 1 else str(_round(folder, number - 1) / "retriever")


def _records(folder: Path, number: int) -> list[str]:
    """The records of all rounds up to this one."""
    return [str(_round(folder, n) / "records") for n in range(1, number + 1)]


def _new_records(folder: Path, number: int) -> dict[str, int]:
    summary = json.loads((_round(folder, number) / "records" / "summary.json").read_text(encoding="utf-8"))
    return {direction: found["kept"] for direction, found in summary["directions"].items()}


def _measured(evaluated: Path, number: int, records: dict[str, int]) -> dict[str, Any]:
    metrics = json.loads((evaluated / "metrics.json").read_text(encoding="utf-8"))
    return {"round": number, "records": records, "metrics": metrics}


def _print_rounds(rounds: list[dict[str, Any]]) -> None:
    from rich.console import Console

    from repair_hf.analysis.tables import terminal_table
    from repair_hf.synthesis.rounds import round_rows

    heads, rows = round_rows(rounds)
    print()
    Console().print(terminal_table([head.replace(" ", "\n", 1) for head in heads], rows))
