"""Repair an image-text retriever: mine its near misses, edit what is wrong in them, train on the result.

The public names below are looked up when first asked for, so `import repair_hf` loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers see, which do not run `__getattr__`
    from repair_hf.collation import GridCollator as GridCollator
    from repair_hf.config import RepairConfig as RepairConfig
    from repair_hf.encoder import DualEncoder as DualEncoder
    from repair_hf.evaluation.retrieval import evaluate_retrieval as evaluate_retrieval
    from repair_hf.llm.cost import estimate_cost as estimate_cost
    from repair_hf.llm.cost import token_price as token_price
    from repair_hf.losses import ContrastiveLoss as ContrastiveLoss
    from repair_hf.losses import GridLoss as GridLoss
    from repair_hf.mining import mine_false_positives as mine_false_positives
    from repair_hf.pairs import Pairs as Pairs
    from repair_hf.pairs import load_pairs as load_pairs
    from repair_hf.records import load_records as load_records
    from repair_hf.synthesis.pipeline import Synthesizer as Synthesizer
    from repair_hf.training import RepairTrainer as RepairTrainer
    from repair_hf.training import train as train

__version__ = "0.1.0"

_HOMES = {
    "Pairs": "repair_hf.pairs",
    "load_pairs": "repair_hf.pairs",
    "DualEncoder": "repair_hf.encoder",
    "mine_false_positives": "repair_hf.mining",
    "Synthesizer": "repair_hf.synthesis.pipeline",
    "load_records": "repair_hf.records",
    "GridCollator": "repair_hf.collation",
    "ContrastiveLoss": "repair_hf.losses",
    "GridLoss": "repair_hf.losses",
    "RepairConfig": "repair_hf.config",
    "RepairTrainer": "repair_hf.training",
    "train": "repair_hf.training",
    "evaluate_retrieval": "repair_hf.evaluation.retrieval",
    "token_price": "repair_hf.llm.cost",
    "estimate_cost": "repair_hf.llm.cost",
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
