"""A study of several data sets: one of each, and their figures in one table.

In:  `--datasets`, name -> the options in which a data set differs from the command's other options.
Out: for each the words of a study of its own, whose folder is named like it; `study.md` above these folders, and every cell in `datasets.csv`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import NONE, label
from repair_hf.runtime.options import UserError, as_flags, flags
from repair_hf.study.effort import R1
from repair_hf.study.options import StudyOptions
from repair_hf.study.products import ceilings_left, products_in
from repair_hf.study.report import write_page
from repair_hf.synthesis.models import LLMOptions

SHARED = ("datasets", "output", "list", "dry_run", "max_usd", "max_calls")  # of the study as a whole
COLUMNS = (*map(label, R1), *(f"{label(name)}, equal steps" for name in R1))


def words_of_each(options: StudyOptions, others: Sequence[Any]) -> dict[str, list[str]]:
    """What would be typed for a study of each data set alone.

    Args:
        options: With `datasets`.
        others: The other options of the command.

    Raises:
        UserError: If a data set has a name that no folder can have, or options that are the whole study's.
    """
    found = {}
    for name, own in options.datasets.items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise UserError(
                f"`datasets` has {name!r}, and each name becomes a folder; use letters, digits, dots and dashes."
            )
        if not isinstance(own, Mapping):
            raise UserError(
                f"`datasets` {name} has {own!r}; give its options by name, such as `pairs: data/flickr30k`."
            )
        if taken := [each for each in SHARED if each in own]:
            raise UserError(
                f"`datasets` {name} has `{taken[0]}`, which is one for all data sets; give it beside `datasets`."
            )
        shared = replace(options, datasets=None, output=str(Path(options.output) / name))
        words = [word for each in (shared, *others) for word in as_flags(each)]
        words += flags({option: value for option, value in own.items() if value is not False})
        # for a switch that is on beside `datasets` alone there is no flag that begins with `--no-`
        found[name] = words + [f"--{option}=false" for option, value in own.items() if value is False]
    return found


def ceilings(llm: LLMOptions, others: Sequence[Path]) -> list[str]:
    """Flags that leave a data set what the others have not spent of the ceilings, which hold for all together.

    Args:
        llm: With the ceilings.
        others: The folders of the other data sets.
    """
    return flags(ceilings_left(llm, (product for folder in others for product in products_in(folder / "products"))))


def write_across(output: Path, names: Sequence[str], *, is_toy: bool) -> Finding:
    """Write the table of all data sets, from what each one's study has written.

    Args:
        output: Of the whole study.
        names: The data sets that are measured.
        is_toy: Whether any of them is the toy world.
    """
    tables = {name: pd.read_csv(output / name / "summary.csv", dtype=str).set_index("method") for name in names}
    methods = list(dict.fromkeys(method for table in tables.values() for method in table.index))
    whole = pd.concat({name: table.reindex(methods)[list(COLUMNS)] for name, table in tables.items()}, axis=1)
    whole.columns = [f"{name}: {head}" for name, head in whole.columns]
    data = pd.concat([pd.read_csv(output / name / "scores.csv").assign(dataset=name) for name in names])
    pages = ", ".join(f"[{name}]({name}/study.md)" for name in names)
    told = (
        "R@1 in %, ± standard deviation over seeds; points of R@1 over plain training of equal steps, with the 95% interval of the images (*: it "
        f"leaves out 0). Each data set's other tables: {pages}."
    )
    found = Finding("datasets", "All data sets", told, whole.fillna(NONE).reset_index(), data=data)
    write_page([found], output, is_toy=is_toy)
    return found
