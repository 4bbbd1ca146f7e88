"""Findings: what a report is made of.

In:  a title, a sentence, a table, a figure.
Out: `Finding`, which knows its files: `NAME.csv` and `NAME.png`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from repair_hf.analysis import charts
from repair_hf.runtime.run_folder import write_atomically

SHOWN = 40  # rows of a table on a page; its CSV has all


@dataclass(frozen=True)
class Finding:
    """One section of a report.

    Args:
        name: Of its files.
        title: Above the section.
        told: What the numbers are, and how to read them; or why there are none.
        table: The numbers; None if there are none.
        figure: The same as a picture.
        data: What the CSV holds where that is more than the table, such as each query.
    """

    name: str
    title: str
    told: str
    table: pd.DataFrame | None = None
    figure: Figure | None = None
    data: pd.DataFrame | None = None

    def save(self, folder: Path) -> bytes | None:
        """Write the files; give back the picture."""
        if self.table is not None:
            table = self.table if self.data is None else self.data
            write_atomically(folder / f"{self.name}.csv", table.to_csv(index=False))
        if self.figure is None:
            return None
        picture = charts.png(self.figure)
        write_atomically(folder / f"{self.name}.png", picture)
        return picture
