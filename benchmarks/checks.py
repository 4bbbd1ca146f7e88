"""Whether the check of edits finds the share of wrong edits that is true in the toy world; both are printed.

Failures are repaired by an editor that errs, and by three LLMs. One never errs, one errs at the paper's rates, and one
also answers one check in twenty wrongly. Every edit is checked, and none is dropped. If the script is killed, the same
command resumes.

python benchmarks/checks.py --output runs/checks
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from facts import measure

from repair_hf.analysis.checked import share_cell
from repair_hf.cli.subcommands import print_table
from repair_hf.mining.mine import mine
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.files import read_json
from repair_hf.runtime.locks import one_writer
from repair_hf.runtime.options import Bounded, opt
from repair_hf.synthesis.checks import EVERY_TYPE
from repair_hf.synthesis.synthesize import synthesize
from repair_hf.toyworld.corpus import build_world

MODEL, EDITOR, LLMS = "world/base", "world/erring", ("world/oracle", "world/erring", "world/erring?misjudges=0.05")
EVERY_EDIT = 10**9


@dataclass
class ChecksOptions(Bounded):
    """How much is repaired."""

    _argument_group_name = "checks"

    output: str = opt("runs/checks", "Folder of the world and the records.")
    train: int = opt(300, "Pictures.", least=1)


def checks(options: ChecksOptions) -> None:
    """Print the share of edits that fit their query: as it is, and as the check finds it."""
    folder, rows = Path(options.output), []
    world = build_world(folder / "world", splits={"train": options.train, "validation": 1, "test": 1}, domain="target")
    pairs = load_pairs(world)
    mine(MODEL, pairs, output=folder / "failures")
    for llm in LLMS:
        records = folder / llm.translate(str.maketrans("/?", "--"))
        named = {"llm": llm, "editor": EDITOR, "output": records, "check_edits": EVERY_EDIT}
        synthesize(folder / "failures", pairs, MODEL, **named)
        truth = measure(records)
        for row in read_json(records / "summary.json")["checked"]:
            if row["error_type"] == EVERY_TYPE:
                share = truth[row["direction"]]["matches"]
                is_inside = "yes" if row["low"] <= share <= row["high"] else "no"
                rows.append([llm, row["direction"], row["checked"], f"{100 * share:.1f}", share_cell(row), is_inside])
    print_table(["edits that fit, in %", "", "edits", "true", "found by the check", "inside"], rows, labels=2)


if __name__ == "__main__":
    (wanted,) = parse((ChecksOptions,), sys.argv[1:], "checks.py")
    with one_writer(wanted.output):
        checks(wanted)
