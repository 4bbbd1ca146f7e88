"""`repair-hf show`: draw some records, their training grids, or dropped or mined failures, as one page.

Of a folder of `repair-hf mine` it draws failures whose false positive outranks the ground truth. The page counts what
speaks against a repair, and sorts the failures by margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from repair_hf.analysis.options import ShowOptions, SourceOptions
from repair_hf.cli.subcommands import print_table, suggest
from repair_hf.runtime.options import Bounded, fields_of, need

EPILOG = """examples:
  repair-hf show runs/failures
  repair-hf show runs/demo/records
  repair-hf show me/photos-repair --direction i2t --error-type Count --n 20 --output sheet.html
  repair-hf show runs/demo/records --dropped gt_invalid --pairs runs/demo/world
  repair-hf show runs/demo/records --anchor any --n 3"""


@dataclass
class PlaceOptions(Bounded):
    """What to draw from."""

    _argument_group_name = "show"

    records: str = need("Folder or Hub id of records, or a folder of `repair-hf mine`.")


OPTIONS = (PlaceOptions, ShowOptions, SourceOptions)


def run(place: PlaceOptions, options: ShowOptions, source: SourceOptions) -> None:
    draw(place.records, options, source.pairs)


def draw(records: str, options: ShowOptions, pairs: Any) -> None:
    """Write the page of records or failures, and print how many are on it and what the repair of failures costs."""
    from repair_hf.analysis.grids import GridSample
    from repair_hf.analysis.show import sheet_path, show

    wanted = {name: getattr(options, name) for name in fields_of(ShowOptions)}
    sample, path = show(records, pairs=pairs, **wanted), sheet_path(records, options.output)
    if isinstance(sample, GridSample):
        print(f"show   {len(sample.grids)} grids; {sample.available:,} anchors have a whole one   -> {path}")
        return
    what = "records" if options.dropped is None else f"failures dropped as {options.dropped}"
    if sample.n_mined:
        what = f"false positives that outrank the ground truth, of {sample.n_mined:,} mined"
    print(f"show   {len(sample.rows)} of {sum(sample.available.values()):,} {what}   -> {path}")
    if sample.lacks_images:
        print("Missing pictures are shown by their ids; --pairs shows them.")
    if sample.n_mined:
        title, (heads, rows), note = sample.tables[-1]
        print(f"\n{title}")
        print_table(heads, rows)
        print(note)
        suggest("analyze", records)
