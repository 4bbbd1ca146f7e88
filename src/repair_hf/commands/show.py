"""`repair-hf show`: look at records.

In:  records, as a folder or a Hub id.
Out: a PNG with some of them, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repair_hf.options import UserError, need, opt
from repair_hf.steps import suggest

EPILOG = """examples:
  repair-hf show runs/demo/records
  repair-hf show --records me/photos-repair --direction i2t --n 20 --output sheet.png"""


@dataclass
class ShowOptions:
    """Which records to draw, and where to."""

    _argument_group_name = "show"

    records: str = need("Folder or Hub id of records.")
    n: int = opt(12, "How many to draw; both directions get the same share.")
    direction: Literal["both", "t2i", "i2t"] = opt("both", "Which direction to draw.")
    seed: int = opt(0, "Another seed draws others.")
    output: str = opt("sheet.png", "The picture to write.")

    def __post_init__(self) -> None:
        if Path(self.output).suffix.lower() != ".png":
            raise UserError(f"`output` is a .png file, got {self.output!r}.")


OPTIONS = (ShowOptions,)


def run(options: ShowOptions) -> None:
    """Draw records as a picture."""
    from repair_hf.analysis.figures import contact_sheet
    from repair_hf.records import load_records

    records = load_records(options.records)
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    direction = None if options.direction == "both" else options.direction
    drawn = contact_sheet(records, options.output, n=options.n, direction=direction, seed=options.seed)
    print(f"show   {len(drawn)} of {len(records):,} records   -> {options.output}")
    suggest(f"train --records {options.records} --help")
