"""On what a number was measured, of which weights, and by which code: it stands with every number.

In:  the options that chose the pairs, the pairs, the model and its digest.
Out: flat keys for `metrics.json`, and the sentence that is printed below a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repair_hf.pairs.benchmarks import SIZES, check_name
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import PairsOptions
from repair_hf.runtime.run_folder import versions


def provenance(options: PairsOptions, pairs: Pairs, model: str, model_digest: str) -> dict[str, Any]:
    """What must be known to compare a number with another one.

    Args:
        options: Which pairs were asked for. A benchmark's name stands here only if `load_pairs` found the split to be that benchmark's.
        pairs: What was found.
        model: Id or folder.
        model_digest: Of the weights, the configuration and the processor.

    Returns:
        `pairs`, `split`, `benchmark` (None for data of no such name), `pairs_fingerprint`, `n_images`, `n_texts`, `model`,
        `model_digest`, `repair_hf` (version) and `commit` (None outside a repository).
    """
    code = versions()
    return {
        "pairs": options.pairs,
        "split": _split(options),
        "benchmark": options.benchmark,
        "pairs_fingerprint": pairs.fingerprint,
        "n_images": len(pairs.images),
        "n_texts": len(pairs.captions),
        "model": model,
        "model_digest": model_digest,
        "repair_hf": code["packages"]["repair-hf"],
        "commit": code["commit"],
    }


def told(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Say it of several models that were measured on the same pairs.

    Args:
        measured: Short name of a model -> what `provenance` gave.
    """
    one = next(iter(measured.values()))
    data = one["benchmark"] or f"{one['pairs']} (under no benchmark's name)"
    others = [count for count in _forms(one) if count != one["n_texts"]]
    form = f" (the split also goes about with {others[0]:,})" if others else ""
    codes = {_code(each): None for each in measured.values()}
    models = "; ".join(f"{name} is {each['model']}, digest {each['model_digest']}" for name, each in measured.items())
    return (
        f"{data}, split {one['split']}, fingerprint {one['pairs_fingerprint']}: {one['n_images']:,} images, {one['n_texts']:,} texts{form}. "
        f"{models}. Measured by {' and '.join(codes)}."
    )


def _split(options: PairsOptions) -> str:
    if options.benchmark is None:
        return options.split
    return check_name(options.benchmark, options.split, with_restval=options.with_restval)


def _forms(measured: Mapping[str, Any]) -> tuple[int, ...]:
    """How many captions a benchmark's split may have."""
    return () if measured["benchmark"] is None else SIZES[measured["benchmark"]][measured["split"]].captions


def _code(measured: Mapping[str, Any]) -> str:
    commit = (
        f" ({measured['commit'][:12]}{'+changes' if '+' in measured['commit'] else ''})" if measured["commit"] else ""
    )
    return f"repair_hf {measured['repair_hf']}{commit}"
