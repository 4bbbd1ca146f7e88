"""`repair-hf figure`: draw one figure for a paper or a card, as SVG or PNG.

`case` is a record with what its edit changed. `grid` is a 3x3 grid with its cosines before and after training.
`margin` is the distribution of margins between edits and their false positives, before and after training.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repair_hf.analysis.options import SourceOptions
from repair_hf.runtime.options import Bounded, UserError, need, opt
from repair_hf.runtime.redaction import printable

EPILOG = """examples:
  repair-hf figure case runs/demo --record 0123456789abcdef --output case.svg
  repair-hf figure grid runs/demo --before world/base --after runs/demo/train/repair --output grid.svg
  repair-hf figure margin runs/demo --before world/base --after runs/demo/train/repair --output margin.svg"""


@dataclass
class FigureOptions:
    run: str = need("Folder of a run, or folder or Hub id of records.")
    output: str = opt("figure.svg", "Figure to write: .svg or .png.")

    def __post_init__(self) -> None:
        if Path(self.output).suffix.lower() not in (".svg", ".png"):
            raise UserError(f"`output` must be an .svg or .png file, got {self.output!r}.")


@dataclass
class CaseOptions:
    record: str | None = opt(None, "record_id of the record to draw. Default: one of those that `show` draws.")


@dataclass
class RetrieverOptions:
    """The retriever before and after training."""

    before: str = need("Retriever before training: Hub id, folder, or world/base.")
    after: str = need("Retriever after training.")


@dataclass
class GridOptions:
    anchor: str | None = opt(
        None, "caption_id of the training pair (the anchor) whose grid is drawn. Default: the first full grid."
    )


@dataclass
class MarginOptions(Bounded):
    n: int = opt(1000, "Records to draw, half of each direction.", least=1)


def draw_case(options: FigureOptions, case: CaseOptions, source: SourceOptions) -> None:
    """Draw a record with what its edit changed."""
    from repair_hf.analysis.pictures import case_figure
    from repair_hf.analysis.record_sample import sample_records
    from repair_hf.records.images import record_at

    records = _records(options, source)
    if case.record is None:
        row = sample_records(records, n=1).rows[0]
    else:
        ids = records["record_id"][:]
        if case.record not in ids:
            raise UserError(f"{options.run} holds no record {case.record!r}; an id looks like {ids[0]!r}.")
        row = record_at(records, ids.index(case.record))
    _save(case_figure(row), options, f"record {row['record_id']}")


def draw_grid(options: FigureOptions, retriever: RetrieverOptions, which: GridOptions, source: SourceOptions) -> None:
    """Draw a 3x3 grid with its cosines before and after training."""
    from repair_hf.analysis.example_grid import cosines, full_grids
    from repair_hf.analysis.pictures import grid_figure
    from repair_hf.analysis.run_data import recorded_pairs

    pairs = recorded_pairs(options.run, source.pairs)
    grid = next(full_grids(pairs, _records(options, source), which.anchor), None)
    if grid is None:
        missing = f"{which.anchor} lacks a record in one direction" if which.anchor else "no caption has two edits"
        raise UserError(f"There is no full grid to draw: {missing}.")
    before, after = (cosines(grid, encoder) for encoder in _encoders(retriever))
    _save(grid_figure(grid, before, after), options, f"grid of {grid.texts[0]!r}")


def draw_margin(
    options: FigureOptions, retriever: RetrieverOptions, which: MarginOptions, source: SourceOptions
) -> None:
    """Draw the margins between edits and their false positives before and after training."""
    from datasets import Dataset

    from repair_hf.analysis.pictures import margin_figure, margins
    from repair_hf.analysis.record_sample import sample_records

    records = _records(options, source)
    rows = sample_records(records, n=which.n).rows
    chosen = Dataset.from_list(rows, features=records.features)
    before, after = (margins(chosen, encoder) for encoder in _encoders(retriever))
    _save(margin_figure(before, after), options, f"{len(rows):,} records")
    data = before.rename(columns={"margin": "before"}).assign(after=after["margin"])
    data.to_csv(Path(options.output).with_suffix(".csv"), index=False)


ACTIONS = {
    "case": ((FigureOptions, CaseOptions, SourceOptions), draw_case),
    "grid": ((FigureOptions, RetrieverOptions, GridOptions, SourceOptions), draw_grid),
    "margin": ((FigureOptions, RetrieverOptions, MarginOptions, SourceOptions), draw_margin),
}


def _records(options: FigureOptions, source: SourceOptions) -> Any:
    from repair_hf.analysis.run_data import moved_pairs, synthesis_folders
    from repair_hf.records.dataset import load_records

    pairs = moved_pairs(options.run, source.pairs)
    return load_records(synthesis_folders(Path(options.run)) or options.run, pairs=pairs)


def _encoders(retriever: RetrieverOptions) -> list:
    from repair_hf.encoder.dual_encoder import DualEncoder

    return [DualEncoder.from_pretrained(name) for name in (retriever.before, retriever.after)]


def _save(figure: Any, options: FigureOptions, what: str) -> None:
    from repair_hf.analysis.charts import save

    Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    save(figure, options.output)
    print(f"figure   {printable(what)}   -> {options.output}")
