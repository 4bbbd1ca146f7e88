"""A study of several datasets: a study of each in a folder of its own, and one table of all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE, label
from repair_hf.runtime.options import UserError, changed, flags
from repair_hf.study.cost_tables import R1
from repair_hf.study.options import StudyOptions
from repair_hf.study.report import write_page
from repair_hf.study.work_sharing import WorkSharing

SHARED = ("datasets", "output", "list", "dry_run", "max_usd", "max_calls", "ledger")  # options of the whole study
COLUMNS = (*map(label, R1), *(f"{label(name)}, equal steps" for name in R1))


def words_of_each(options: StudyOptions, others: Sequence[Any]) -> dict[str, list[str]]:
    """Return the command line of each dataset's own study, from all options of the command."""
    found = {}
    for name, own in (options.datasets or {}).items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(
                f"`datasets` has {name!r}, and each name becomes a folder; use letters, digits and dashes."
            )
        if not isinstance(own, Mapping):
            raise UserError(
                f"`datasets` {name} has {own!r}; give its options by name, such as `pairs: data/flickr30k`."
            )
        if taken := [each for each in SHARED if each in own]:
            raise UserError(
                f"`datasets` {name} has `{taken[0]}`, which is one for all data sets; give it beside `datasets`."
            )
        cells = options.cells and str(Path(options.cells) / name)
        shared = replace(options, datasets=None, output=str(Path(options.output) / name), cells=cells)
        words = [word for each in (shared, *others) for word in flags(changed(each))]
        words += flags({option: value for option, value in own.items() if value is not False})
        # a switch that is off by default has no flag that begins with `--no-`
        found[name] = words + [f"--{option}=false" for option, value in own.items() if value is False]
    return found


def write_across(output: Path, names: Sequence[str], *, is_toy: bool) -> Finding:
    """Write the table of all finished datasets from the files of their studies."""
    tables = {name: pd.read_csv(output / name / "summary.csv", dtype=str).set_index("method") for name in names}
    methods = list(dict.fromkeys(method for table in tables.values() for method in table.index))
    whole = pd.concat({name: table.reindex(methods)[list(COLUMNS)] for name, table in tables.items()}, axis=1)
    whole.columns = [f"{name}: {head}" for name, head in whole.columns]
    data = pd.concat([pd.read_csv(output / name / "scores.csv").assign(dataset=name) for name in names])
    pages = ", ".join(f"[{name}]({name}/study.md)" for name in names)
    note = (
        "R@1 in %, ± standard deviation over seeds; gain over plain training of equal steps in points of R@1, with "
        f"the 95% interval over images (*: excludes 0). Each dataset's other tables: {pages}."
    )
    found = Finding("datasets", "All data sets", note, whole.fillna(NONE).reset_index(), data=data)
    with WorkSharing(output / ".locks").lock("report"):
        write_page([found], output, is_toy=is_toy)
    return found
