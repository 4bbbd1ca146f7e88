"""`repair-hf run`: run all stages of a recipe folder, round after round, as long as rounds help.

The folder holds `mine.yaml`, `synthesize.yaml`, `train.yaml` and `evaluate.yaml`; with a `world.yaml`, the toy world
is drawn first. The first round writes to the recipes' own outputs, and uses what they hold already. The folder above
these gets `base/` (the evaluation of the base retriever), `round-1/` (`plain` and `evaluate`), `round-2/` ... (each
also with `failures`, `records` and `retriever`) and `rounds.json`, the table of rounds.

A round mines with the newest checkpoint, repairs failures that no earlier round has seen, and trains that checkpoint
further on the records of all rounds. Beside it stands `plain`: the same trainings without records, from the same base.
The evaluation of both shows what the records add.

Each stage runs with the options of its recipe, except for what differs by round. All recipes are of one folder. The
same command resumes a killed run.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf.cli.subcommands import load_command, perform, print_table
from repair_hf.llm.ledger_file import FILE as LEDGER
from repair_hf.runtime.command_line import find_recipe, parse
from repair_hf.runtime.files import read_json
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import Bounded, UserError, fields_of, need, opt
from repair_hf.runtime.processes import refuse_several

EPILOG = """examples:
  repair-hf run toy --rounds 3
  repair-hf run recipes/toy --rounds 3
  repair-hf run recipes/toy --rounds 3 --dry-run

Each stage reads its recipe from that folder. `run` sets models and records, and outputs from round 2 on. You can
repeat a finished run with more --rounds."""

STAGES = ("mine", "synthesize", "train", "evaluate")
PLACES = {"mine": "failures", "synthesize": "records", "train": "retriever"}


@dataclass
class RunOptions(Bounded):
    recipe: str = need(
        "Folder with mine.yaml, synthesize.yaml, train.yaml and evaluate.yaml, or a shipped recipe: toy."
    )
    rounds: int = opt(
        1, "Most rounds to run; `max_usd` and `max_calls` in synthesize.yaml hold for all rounds together.", least=1
    )
    min_gain: float = opt(0.1, "Stop after a round that gains fewer points of R@1, mean of both directions.")
    split: str = opt("validation", "Split to evaluate rounds on, in place of that of evaluate.yaml; test once, last.")
    dry_run: bool = opt(False, "Print the commands that would run, then stop.")


OPTIONS = (RunOptions,)


def run(options: RunOptions) -> None:
    """Mine, synthesize, train with and without records, and evaluate, until the rounds are done or no longer help."""
    from repair_hf.pairs.dataset import loading_once

    refuse_several("run")
    rounds = _Rounds(find_recipe(options.recipe), options)
    with nullcontext() if options.dry_run else one_writer(rounds.folder), loading_once():
        rounds.draw_world()
        rounds.evaluate([rounds.base], rounds.folder / "base")
        if not options.dry_run:
            return _run_rounds(rounds, options)
        for number in range(1, options.rounds + 1):
            rounds.repair(number)
            rounds.train(number)


def _run_rounds(rounds: _Rounds, options: RunOptions) -> None:
    from repair_hf.analysis.tables import mean_gain, round_rows
    from repair_hf.cli.evaluate import answer
    from repair_hf.llm.ledger import BudgetSpent
    from repair_hf.runtime.run_folder import RunStopped, write_atomically
    from repair_hf.synthesis.outcome import NothingRepaired

    folder, recipe = rounds.folder, rounds.recipe / "synthesize.yaml"
    done: list[dict[str, Any]] = [{"round": 0, "records": {"i2t": 0, "t2i": 0}, "metrics": _measured(folder / "base")}]
    why = f"after {options.rounds} round{'s' if options.rounds > 1 else ''}, as requested"
    for number in range(1, options.rounds + 1):
        try:
            rounds.repair(number)
        except BudgetSpent as error:
            raise RunStopped(
                f"Round {number}: {error} The ceiling holds for all rounds together; it stands in {recipe}."
            ) from error
        except NothingRepaired:
            if number == 1:
                raise
        new = rounds.new_records(number)
        if not sum(new.values()):
            why = f"because round {number} made no new record"
            break
        rounds.train(number)
        plain, retriever = map(rounds.measured, (number, number), ("plain", "train"))
        done.append({"round": number, "records": new, "metrics": retriever, "plain": plain})
        gain = done[-1]["gain"] = mean_gain(done[-2]["metrics"], done[-1]["metrics"])
        if gain < options.min_gain:
            why = f"because round {number} gained {gain:+.2f} points, less than --min-gain {options.min_gain:g}"
            break
    table = {"recipe": options.recipe, "split": rounds.split, "min_gain": options.min_gain, "stopped": why}
    write_atomically(folder / "rounds.json", json.dumps(table | {"rounds": done}, indent=2) + "\n")
    print()
    print_table(*round_rows(done))
    for comparison in rounds.repaired(done[-1]["round"]):
        print(answer(comparison))
    print(f"evaluated on the split `{rounds.split}`; stopped {why}   -> {folder}")
    if rounds.split != "test":
        print("When all is decided, measure once with `evaluate --split test` and another --output.")
    elif options.rounds > 1:
        print("The number of rounds was selected on the test split, which biases its metrics; leave --split out.")


class _Rounds:
    """The stages of all rounds, which a dry run prints only.

    Raises:
        UserError: If a recipe is missing or wrong, or their outputs do not lie in one folder.
    """

    def __init__(self, recipe: Path, options: RunOptions) -> None:
        if missing := [f"{name}.yaml" for name in STAGES if not (recipe / f"{name}.yaml").is_file()]:
            raise UserError(f"{recipe} lacks {', '.join(missing)}; give a folder with a recipe of each stage.")
        self.recipe, self.is_dry = recipe, options.dry_run
        # all of them now, so that a misspelt key in the last recipe is reported before the first stage runs
        self._options = {name: _read(recipe, name) for name in STAGES}
        self._outputs = {name: Path(self._option(name, "output")) for name in ("mine", "synthesize", "train")}
        if len(folders := {output.parent for output in self._outputs.values()}) > 1:
            raise UserError(
                f"The outputs of mine.yaml, synthesize.yaml and train.yaml in {recipe} must lie in one folder, which "
                f"gets the later rounds; they lie in {', '.join(sorted(map(str, folders)))}."
            )
        self.folder = folders.pop()
        self.split = options.split
        self.base = self._option("mine", "model")
        # all rounds pay from one ledger, by default that of the first round
        self.ledger = self._option("synthesize", "ledger") or str((self._outputs["synthesize"] / LEDGER).absolute())

    def place(self, number: int, name: str) -> Path:
        """Return the folder of a stage of a round."""
        if number == 1 and name in self._outputs:
            return self._outputs[name]
        return self.folder / f"round-{number}" / PLACES.get(name, name)

    def draw_world(self) -> None:
        """Draw the toy world, if there is a recipe of it."""
        if (self.recipe / "world.yaml").is_file():
            perform("world build", *_read(self.recipe, "world", "build"), dry_run=self.is_dry)

    def repair(self, number: int) -> None:
        """Mine with the newest checkpoint, and make records of the new failures."""
        failures, records = self.place(number, "mine"), self.place(number, "synthesize")
        self._stage("mine", self._newest(number), failures)
        changes: dict[str, Any] = {"failures": str(failures), "ledger": self.ledger}
        if number > 1:
            changes["earlier_rounds"] = self.records(number - 1)
        summary, is_trained = records / "summary.json", (self.place(number, "train") / "config.yaml").is_file()
        if is_trained and summary.is_file() and not read_json(summary, needs=["open"])["open"]:
            return  # failures without an answer are not asked again: these records have been trained on
        self._stage("synthesize", self._newest(number), records, **changes)

    def train(self, number: int) -> None:
        """Train the newest checkpoint on the records of all rounds and one without records, and evaluate both."""
        for name, records in {"plain": None, "train": self.records(number)}.items():
            self._stage("train", self._newest(number, name), self.place(number, name), records=records)
        self.evaluate(self._trained(number), self.place(number, "evaluate"))

    def evaluate(self, models: list[str], output: Path) -> None:
        self._stage("evaluate", models, output, split=self.split)

    def measured(self, number: int, name: str) -> dict[str, Any]:
        """Return the metrics of a round's `plain` or `train`."""
        from repair_hf.evaluation.comparison import short_names

        models = {model: short for short, model in short_names(self._trained(number)).items()}
        return _measured(self.place(number, "evaluate") / models[str(self.place(number, name))])

    def repaired(self, number: int) -> list[dict[str, Any]]:
        """Return the comparisons of a round's retriever with training without records; none for the base."""
        path = self.place(number, "evaluate") / "differences.json"
        return read_json(path, needs=("repair",))["repair"] if number else []

    def _trained(self, number: int) -> list[str]:
        return [str(self.place(number, name)) for name in ("plain", "train")]

    def new_records(self, number: int) -> dict[str, int]:
        summary = read_json(self.place(number, "synthesize") / "summary.json", needs=["directions"])
        return {direction: counts["kept"] for direction, counts in summary["directions"].items()}

    def records(self, number: int) -> list[str]:
        """Return the records of all rounds up to this one."""
        return [str(self.place(n, "synthesize")) for n in range(1, number + 1)]

    def _newest(self, number: int, name: str = "train") -> str:
        """Return the retriever that a round starts from."""
        return self.base if number == 1 else str(self.place(number - 1, name))

    def _stage(self, name: str, model: str | list[str], output: Path, **changes: Any) -> None:
        """Run a stage with its recipe, but for these options."""
        changes |= {"model": model, "output": str(output)}
        perform(name, *(_with(group, changes) for group in self._options[name]), dry_run=self.is_dry)

    def _option(self, stage: str, name: str) -> Any:
        return next(getattr(group, name) for group in self._options[stage] if hasattr(group, name))


def _read(recipe: Path, name: str, action: str | None = None) -> tuple:
    """Read the recipe of a command."""
    module, words = load_command(name), ["--config", str(recipe / f"{name}.yaml")]
    return parse(module.ACTIONS[action][0] if action else module.OPTIONS, words, f"repair-hf {name}")


def _with(options: Any, changes: dict[str, Any]) -> Any:
    """Return a copy of a dataclass of options, with those of `changes` that it declares."""
    changed = copy(options)  # a stage may change its options
    for name in changes.keys() & set(fields_of(options)):
        setattr(changed, name, changes[name])
    return changed


def _measured(evaluated: Path) -> dict[str, Any]:
    return read_json(evaluated / "metrics.json", needs=("i2t_R@1", "t2i_R@1"))
