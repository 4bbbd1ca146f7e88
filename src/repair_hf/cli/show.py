"""`repair-hf show`: draw some records, or dropped or mined failures, as one page.

Of a folder of `repair-hf mine` it draws failures whose false positive outranks the ground truth. The page counts what
speaks against a repair, and sorts the failures by margin.
"""

from __future__ import annotations

from dataclasses import dataclass

from repair_hf.analysis.options import ShowOptions, SourceOptions
from repair_hf.cli.subcommands import suggest
from repair_hf.runtime.options import Bounded, fields_of, need

EPILOG = """examples:
  repair-hf show runs/failures
  repair-hf show runs/demo/records
  repair-hf show me/photos-repair --direction i2t --error-type Count --n 20 --output sheet.html
  repair-hf show runs/demo/records --dropped gt_invalid --pairs runs/demo/world"""


@dataclass
class PlaceOptions(Bounded):
    """What to draw from."""

    _argument_group_name = "show"

    records: str = need("Folder or Hub id of records, or a folder of `repair-hf mine`.")


OPTIONS = (PlaceOptions, ShowOptions, SourceOptions)


def run(place: PlaceOptions, options: ShowOptions, source: SourceOptions) -> None:
    from repair_hf.analysis.mined import is_mined
    from repair_hf.analysis.show import sheet_path, show

    wanted = {name: getattr(options, name) for name in fields_of(ShowOptions)}
    sample, is_of_mine = show(place.records, pairs=source.pairs, **wanted), is_mined(place.records)
    what = "records" if options.dropped is None else f"failures dropped as {options.dropped}"
    what = "failures" if is_of_mine else what
    count, path = sum(sample.available.values()), sheet_path(place.records, options.output)
    print(f"show   {len(sample.rows)} of {count:,} {what}   -> {path}")
    if sample.lacks_images:
        print("Missing pictures are shown by their ids; --pairs shows them.")
    if is_of_mine:
        suggest("analyze", place.records)
