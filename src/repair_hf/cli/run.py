"""`repair-hf run`: run all stages of a recipe folder, round after round, as long as rounds help.

The folder holds `mine.yaml`, `synthesize.yaml`, `train.yaml` and `evaluate.yaml`; with a `world.yaml`, the toy world
is drawn first. The output holds `base/` (the evaluation of the base retriever), `round-1/`, `round-2/` ... (each with
`failures`, `records`, `retriever` and `evaluate`) and `rounds.json`, the table of rounds.

A round mines with the newest checkpoint, repairs failures that no earlier round has seen, trains that checkpoint
further on the records of all rounds, and evaluates it. As in the paper, a round continues the training of one
retriever. A later round has therefore trained for longer: compare it with as many steps on the records of the first
round.

The command runs what a user would run: each stage with its recipe, and with flags for what differs by round. If it is
killed, the same command skips the finished stages and resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from repair_hf.cli.subcommands import load_command, print_command, run_command, suggest
from repair_hf.runtime.command_line import flags, parse
from repair_hf.runtime.options import UserError, need, opt
from repair_hf.runtime.processes import refuse_several

EPILOG = """examples:
  repair-hf run recipes/toy --rounds 3
  repair-hf run recipes/toy --rounds 3 --split validation --output runs/toy-rounds
  repair-hf run recipes/toy --rounds 3 --dry-run

Each stage reads its recipe of that folder; the round sets models, records and outputs. You can repeat a finished run
with more --rounds."""

ALL_RECORDS = "round-*/records"
STAGES = ("mine", "synthesize", "train", "evaluate")


@dataclass
class RunOptions:
    """Which recipes, and how many rounds."""

    _argument_group_name = "run"

    recipe: str = need("Folder of recipes: mine.yaml, synthesize.yaml, train.yaml, evaluate.yaml.")
    output: str | None = opt(None, "Folder of all rounds; runs/<name of the recipe's folder>-rounds by default.")
    rounds: int = opt(
        1, "Rounds at most; `max_usd` and `max_calls` in synthesize.yaml hold for all rounds together.", least=1
    )
    min_gain: float = opt(0.1, "Stop after a round that gains fewer points of R@1, mean of both directions.")
    split: str | None = opt(
        None, "Split to evaluate rounds on; that of evaluate.yaml by default. Prefer validation over test."
    )
    dry_run: bool = opt(False, "Print the commands that would run, then stop.")


OPTIONS = (RunOptions,)


def run(options: RunOptions) -> None:
    """Mine, synthesize, train and evaluate until the rounds are done or no longer help."""
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
    if inherit([alone], first):  # paid for when the recipe was run by itself
        print(f"{first} starts with the answers and images of {alone}.")
    for number in range(1, options.rounds + 1):
        try:
            stage.repair(folder, number, base)
        except BudgetSpent as error:
            dollars, calls = paid_by(folder.glob(ALL_RECORDS))
            raise RunStopped(
                f"A ceiling of {stage.recipe / 'synthesize.yaml'} is reached in round {number}: {calls:,} LLM answers "
                f"and ${dollars:.4f} are paid, all rounds together. Every answer is kept. Raise `max_usd` or "
                "`max_calls` there, and the same command resumes."
            ) from error
        if not sum(_new_records(folder, number).values()):
            why = f"round {number} made no new record"
            break
        stage.train(folder, number, base)
        rounds.append(_measured(_round(folder, number) / "evaluate", number, _new_records(folder, number)))
        gain = mean_gain(rounds[-2]["metrics"], rounds[-1]["metrics"])
        rounds[-1]["gain"] = gain
        if gain < options.min_gain:
            why = f"round {number} gained {gain:+.2f} points, fewer than --min-gain {options.min_gain:g}"
            break
    table = {"recipe": options.recipe, "split": stage.split, "min_gain": options.min_gain, "stopped": why}
    write_atomically(folder / "rounds.json", json.dumps(table | {"rounds": rounds}, indent=2) + "\n")
    _print_rounds(rounds)
    print(f"evaluated on the split `{stage.split}`; stopped: {why}   -> {folder}")
    if stage.split == "test":
        print("The number of rounds was selected on the test split, which biases its metrics; use --split validation.")
    suggest("show", str(folder / "round-1" / "records"))


class _Stages:
    """The commands of a recipe folder; `type` takes the words of each, and runs or prints them."""

    def __init__(self, recipe: Path, split: str, type: Callable[..., None]) -> None:
        self.recipe, self.split, self.type = recipe, split, type

    def repair(self, folder: Path, number: int, base: str) -> None:
        """Mine with the newest checkpoint, and make records of the new failures."""
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
        """Return flags for what other rounds leave of the recipe's ceilings; none before another round has started."""
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
    for name in STAGES:  # report a misspelt key in the last recipe before the first stage runs
        _read(recipe, name)


def _read(recipe: Path, name: str) -> Any:
    """Return all options of a recipe as one object."""
    values: dict[str, Any] = {}
    for each in parse(load_command(name).OPTIONS, ["--config", str(recipe / f"{name}.yaml")], f"repair-hf {name}"):
        values |= vars(each)
    return SimpleNamespace(**values)


def _round(folder: Path, number: int) -> Path:
    return folder / f"round-{number}"


def _newest(folder: Path, number: int, base: str) -> str:
    """Return the retriever that a round starts from."""
    return base if number == 1 else str(_round(folder, number - 1) / "retriever")


def _records(folder: Path, number: int) -> list[str]:
    """Return the records of all rounds up to this one."""
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
