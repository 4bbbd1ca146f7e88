"""Repair an image-text retriever: mine its near misses, edit what is wrong in them, train on the result.

The public names below are looked up when first asked for, so `import repair_hf` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers see, which do not run `__getattr__`
    from repair_hf.analysis.analyze import analyze as analyze
    from repair_hf.analysis.show import show as show
    from repair_hf.encoder.blend import export_blend as export_blend
    from repair_hf.encoder.dual_encoder import DualEncoder as DualEncoder
    from repair_hf.evaluation.evaluate import evaluate as evaluate
    from repair_hf.evaluation.retrieval import evaluate_retrieval as evaluate_retrieval
    from repair_hf.hub.push import push_model as push_model
    from repair_hf.hub.push import push_records as push_records
    from repair_hf.mining.false_positives import mine_false_positives as mine_false_positives
    from repair_hf.mining.mine import mine as mine
    from repair_hf.pairs.dataset import Pairs as Pairs
    from repair_hf.pairs.dataset import load_pairs as load_pairs
    from repair_hf.records.dataset import load_records as load_records
    from repair_hf.records.triplets import export_triplets as export_triplets
    from repair_hf.study.run import run_study as run_study
    from repair_hf.synthesis.contrast import contrast_set as contrast_set
    from repair_hf.synthesis.synthesize import synthesize as synthesize
    from repair_hf.training.batches import PairCollator as PairCollator
    from repair_hf.training.config import RepairConfig as RepairConfig
    from repair_hf.training.finetune import train as train
    from repair_hf.training.step import Objective as Objective
    from repair_hf.training.step import PairObjective as PairObjective
    from repair_hf.training.step import Step as Step
    from repair_hf.training.trainer import RepairTrainer as RepairTrainer

__version__ = "0.1.0"

_HOMES = {
    "Pairs": "repair_hf.pairs.dataset",
    "load_pairs": "repair_hf.pairs.dataset",
    "DualEncoder": "repair_hf.encoder.dual_encoder",
    "mine": "repair_hf.mining.mine",
    "mine_false_positives": "repair_hf.mining.false_positives",
    "synthesize": "repair_hf.synthesis.synthesize",
    "contrast_set": "repair_hf.synthesis.contrast",
    "load_records": "repair_hf.records.dataset",
    "PairCollator": "repair_hf.training.batches",
    "Objective": "repair_hf.training.step",
    "PairObjective": "repair_hf.training.step",
    "Step": "repair_hf.training.step",
    "RepairConfig": "repair_hf.training.config",
    "RepairTrainer": "repair_hf.training.trainer",
    "push_model": "repair_hf.hub.push",
    "push_records": "repair_hf.hub.push",
    "train": "repair_hf.training.finetune",
    "run_study": "repair_hf.study.run",
    "evaluate": "repair_hf.evaluation.evaluate",
    "show": "repair_hf.analysis.show",
    "analyze": "repair_hf.analysis.analyze",
    "export_blend": "repair_hf.encoder.blend",
    "export_triplets": "repair_hf.records.triplets",
    "evaluate_retrieval": "repair_hf.evaluation.retrieval",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {sorted(_HOMES)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
