"""Repair an image-text retriever: mine its near misses, edit what is wrong in them, train on the result.

The public names below are looked up when first asked for, so `import repair_hf` loads no torch.
"""

from __future__ import annotations

import importlib

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
    "evaluate_retrieval": "repair_hf.evaluation.retrieval",
    "token_price": "repair_hf.llm.cost",
    "estimate_cost": "repair_hf.llm.cost",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {sorted(_HOMES)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
