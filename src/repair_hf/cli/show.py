"""`repair-hf show`: draw some records, or dropped or mined failures, as one page (.html) or picture (.png).

Of a folder of `repair-hf mine` it draws failures whose false positive outranks the ground truth. The page counts what
speaks against a repair, and sorts the failures by margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from repair_hf.cli.subcommands import suggest
from repair_hf.runtime.options import Bounded, SourceOptions, UserError, need, opt

if TYPE_CHECKING:
    from repair_hf.analysis.record_sample import RecordSample

EPILOG = """examples:
  repair-hf show runs/failures
  repair-hf show runs/demo/records
  repair-hf show me/photos-repair --direction i2t --error-type Count --n 20 --output sheet.html
  repair-hf show runs/demo/records --dropped gt_invalid --pairs runs/demo/world"""


@dataclass
class ShowOptions(Bounded):
    _is_shared = True  # a file
    records: str = need("Folder or Hub id of records, or a folder of `repair-hf mine`.")
    n: int = opt(12, "Records to draw, half of each direction.", least=1)
    direction: Literal["both", "t2i", "i2t"] = opt("both", "Direction of the records.")
    error_type: str | None = opt(
        None, "Draw only records whose edit instruction names this error type, such as Count."
    )
    dropped: str | None = opt(None, "Draw failures that were dropped for this reason instead, such as gt_invalid.")
    seed: int = opt(0, "Seed of the sample.")
    output: str = opt("sheet.html", "Page (.html) or picture (.png) to write.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if Path(self.output).suffix.lower() not in (".html", ".png"):
            raise UserError(f"`output` must be an .html or .png file, got {self.output!r}.")


OPTIONS = (ShowOptions, SourceOptions)
BRIEF = "records n direction error_type dropped seed output pairs image_folder".split()


def run(options: ShowOptions, source: SourceOptions) -> None:
    from repair_hf.analysis.charts import save
    from repair_hf.analysis.mined import is_mined
    from repair_hf.analysis.pages import gallery
    from repair_hf.analysis.pictures import contact_sheet
    from repair_hf.runtime.run_folder import write_atomically

    is_of_mine = is_mined(options.records)
    sample, questions = (_of_mine if is_of_mine else _of_records)(options, source)
    path = Path(options.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".html":
        write_atomically(path, gallery(sample, questions))
    else:
        save(contact_sheet(sample), path)
    what = "records" if options.dropped is None else f"failures dropped as {options.dropped}"
    what = "failures" if is_of_mine else what
    print(f"show   {len(sample.rows)} of {sum(sample.available.values()):,} {what}   -> {path}")
    if sample.lacks_images:
        print("Missing pictures are shown by their ids; --pairs shows them.")
    if is_of_mine:
        suggest("analyze", options.records)
    elif options.dropped is None:
        suggest("train", "--records", options.records, "--pairs", "...", "--model", "...", "--output", "runs/train")


def _of_records(options: ShowOptions, source: SourceOptions) -> tuple[RecordSample, list[list[str]]]:
    from repair_hf.analysis.record_sample import sample_records
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.records.dataset import load_dropped, load_records

    table = load_records(options.records) if options.dropped is None else load_dropped(options.records)
    sample = sample_records(
        table,
        n=options.n,
        direction=None if options.direction == "both" else options.direction,
        error_type=options.error_type,
        reason=options.dropped,
        pairs=None if source.pairs is None else load_wanted(source),
        folders=[Path(options.records)] if options.dropped is None else [],
        seed=options.seed,
    )
    return sample, []


def _of_mine(options: ShowOptions, source: SourceOptions) -> tuple[RecordSample, list[list[str]]]:
    from repair_hf.analysis.mined import load_mined, questions, sample_failures
    from repair_hf.analysis.report import cells
    from repair_hf.pairs.dataset import load_wanted

    for name in ("error_type", "dropped"):
        if (given := getattr(options, name)) is not None:
            raise UserError(
                f"`{name}` {given} is for records, and {options.records} holds mined failures. Leave it out."
            )
    if not options.output.lower().endswith(".html"):
        raise UserError(f"Mined failures are shown as a page, got `output` {options.output}. Give an .html file.")
    mined = load_mined(options.records, None if source.pairs is None else load_wanted(source))
    direction = None if options.direction == "both" else options.direction
    return sample_failures(mined, n=options.n, direction=direction, seed=options.seed), cells(questions(mined))
