"""`repair-hf evaluate`: measure retrieval in both directions, by full ranking.

In:  pairs and a dual encoder by id or folder.
Out: `metrics.json` and a table: R@1/5/10 and MRR, with the numbers of images and captions they were measured on.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from repair_hf.options import PairsOptions, StageOptions, as_flags, need, opt
from repair_hf.steps import suggest

EPILOG = """examples:
  repair-hf evaluate --pairs runs/world --model world/base --output runs/evaluate
  repair-hf evaluate --pairs me/my-dataset --split test --model openai/clip-vit-base-patch32 --output runs/evaluate"""


@dataclass
class EvaluateOptions:
    """Which retriever is measured."""

    _argument_group_name = "evaluate"

    model: str = need("The retriever: Hub id or folder of a dual encoder, or world/base.")
    batch_size: int = opt(256, "Items encoded at once.")


@dataclass
class TestPairsOptions(PairsOptions):
    """Which images and captions are ranked; the test split unless told otherwise."""

    split: str = opt("test", "Which split; `all` takes everything.")


OPTIONS = (TestPairsOptions, StageOptions, EvaluateOptions)


def run(pairs_options: TestPairsOptions, stage: StageOptions, options: EvaluateOptions) -> None:
    """Measure, or say on what."""
    from rich.console import Console

    from repair_hf.analysis.tables import metrics_table
    from repair_hf.encoder import DualEncoder
    from repair_hf.evaluation.retrieval import evaluate_retrieval
    from repair_hf.pairs import load_wanted
    from repair_hf.runs import finish_stage, finished, open_stage, write_atomically
    from repair_hf.toyworld.shipped import locate

    pairs = load_wanted(pairs_options)
    if stage.dry_run:
        print(f"{len(pairs.images):,} images and {len(pairs.captions):,} captions would be embedded and ranked.")
        return
    encoder = DualEncoder.from_pretrained(locate(options.model), batch_size=options.batch_size)
    resolved = asdict(pairs_options) | asdict(stage) | asdict(options)
    resolved |= {"pairs_fingerprint": pairs.fingerprint, "model_digest": encoder.digest}
    del resolved["batch_size"]  # decides how fast, not what
    metrics = finished(stage.output, resolved)
    if metrics is None:
        folder = open_stage(stage.output, command="evaluate", options=resolved)
        metrics = evaluate_retrieval(*encoder.embed_pairs(pairs), pairs.caption_image)
        write_atomically(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")
        finish_stage(folder, metrics)
    table, _ = metrics_table({Path(options.model).name: [metrics]})
    Console().print(table)
    print(f"-> {stage.output}")
    mined = PairsOptions(**asdict(pairs_options) | {"split": "train"})
    suggest(f"mine {shlex.join([*as_flags(mined), '--model', options.model])} --output runs/failures")
