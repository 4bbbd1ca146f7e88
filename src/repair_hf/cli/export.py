"""`repair-hf export`: write a blend of two models, or records for sentence-transformers or composed retrieval."""

from __future__ import annotations

from dataclasses import dataclass

from repair_hf.analysis.options import SourceOptions
from repair_hf.runtime.options import Bounded, need, opt

EPILOG = """examples:
  repair-hf export blend runs/train --base world/base --weight 0.8 --output runs/blend
  repair-hf export triplets --records runs/records --output runs/triplets
  repair-hf export composed --records runs/records --output runs/composed
  repair-hf export triplets --records me/photos-repair --pairs me/photos --output runs/triplets"""


@dataclass
class BlendOptions(Bounded):
    model: str = need("The tuned model: Hub id or folder.")
    base: str = need("The model that it was tuned from: Hub id or folder, or world/base.")
    weight: float = need("Weight of the tuned model, from 0 (the base) to 1.", least=0, most=1)
    output: str = need("Folder to write the model to.")


def blend(options: BlendOptions) -> None:
    """Write the weighted mean of a tuned model and its base."""
    from repair_hf.encoder.blend import export_blend

    size = export_blend(options.model, options.base, options.weight, options.output)["parameters"]
    print(f"export  {options.weight:g} of {options.model}, {size:,} parameters   -> {options.output}")


@dataclass
class TripletOptions(Bounded):
    records: list[str] = need("Folders of `repair-hf synthesize` or Hub ids of records.")
    output: str = need("Folder to write the result to.")
    records_revision: str | None = opt(
        None, "Tag, branch or commit of records on the Hub, such as round-1; the newest by default."
    )


def triplets(options: TripletOptions, source: SourceOptions) -> None:
    """Write records as triplets (anchor, positive, negative), for sentence-transformers."""
    from repair_hf.analysis.run_data import recorded_pairs
    from repair_hf.records.triplets import export_triplets

    pairs = recorded_pairs(options.records[0], source.pairs)
    counts = export_triplets(options.records, pairs, options.output, revision=options.records_revision)
    print(f"export  {', '.join(f'{count:,} {kind}' for kind, count in counts.items())}   -> {options.output}")


def composed(options: TripletOptions, source: SourceOptions) -> None:
    """Write edits of images as triplets of composed retrieval: image, instruction, edited image."""
    from repair_hf.analysis.run_data import recorded_pairs
    from repair_hf.records.triplets import export_composed

    pairs = recorded_pairs(options.records[0], source.pairs)
    counts = export_composed(options.records, pairs, options.output, revision=options.records_revision)
    print(f"export  {counts['rows']:,} edited images   -> {options.output}")


ACTIONS = {
    "blend": ((BlendOptions,), blend),
    "composed": ((TripletOptions, SourceOptions), composed),
    "triplets": ((TripletOptions, SourceOptions), triplets),
}
