"""`repair-hf figure`: draw a 3x3 training grid with its cosines before and after training, as SVG or PNG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from repair_hf.analysis.options import SourceOptions
from repair_hf.runtime.options import UserError, need, opt

EPILOG = """example:
  repair-hf figure runs/demo --before world/base --after runs/demo/train/repair --output grid.svg"""


@dataclass
class FigureOptions:
    run: str = need("Folder of a run, or folder or Hub id of records.")
    before: str = need("Retriever before training: Hub id, folder, or world/base.")
    after: str = need("Retriever after training.")
    anchor: str | None = opt(
        None, "caption_id of the training pair (the anchor) whose grid is drawn. Default: the first full grid."
    )
    output: str = opt("figure.svg", "Figure to write: .svg or .png.")

    def __post_init__(self) -> None:
        if Path(self.output).suffix.lower() not in (".svg", ".png"):
            raise UserError(f"`output` must be an .svg or .png file, got {self.output!r}.")


OPTIONS = (FigureOptions, SourceOptions)


def run(options: FigureOptions, source: SourceOptions) -> None:
    from repair_hf.analysis.charts import save
    from repair_hf.analysis.example_grid import cosines, full_grid
    from repair_hf.analysis.pictures import grid_figure
    from repair_hf.analysis.run_data import gather, moved_pairs, synthesis_folders
    from repair_hf.encoder.dual_encoder import DualEncoder
    from repair_hf.records.dataset import load_records

    pairs = moved_pairs(options.run, source.pairs)
    records = load_records(synthesis_folders(Path(options.run)) or options.run, pairs=pairs)
    grid = full_grid(pairs or gather(options.run).pairs(), records, options.anchor)
    before, after = (cosines(grid, DualEncoder.from_pretrained(name)) for name in (options.before, options.after))
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    save(grid_figure(grid, before, after), options.output)
    print(f"figure   grid of {grid.texts[0]!r}   -> {options.output}")
