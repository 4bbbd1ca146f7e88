"""The provenance of a metric: data, weights and code, as keys of `metrics.json` and as a sentence below a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repair_hf.pairs.benchmarks import SIZES, check_name
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import PairsOptions
from repair_hf.runtime.run_folder import versions


def provenance(options: PairsOptions, pairs: Pairs, model: str, model_digest: str) -> dict[str, Any]:
    """Return what is needed to compare a metric with another one.

    `benchmark` is None for other data: options name one only if `load_pairs` has verified the split's size. `commit`
    is None outside a repository.
    """
    code, split, benchmark = versions(), options.split, options.benchmark
    if pairs.whole is not None:  # a draw of it
        benchmark = None
    if benchmark is not None:
        split = check_name(benchmark, split, with_restval=options.with_restval)
    return {
        "pairs": options.pairs,
        "split": split,
        "benchmark": benchmark,
        "pairs_fingerprint": pairs.fingerprint,
        "n_images": len(pairs.images),
        "n_texts": len(pairs.captions),
        "model": model,
        "model_digest": model_digest,
        "repair_hf": code["packages"]["repair-hf"],
        "commit": code["commit"],
    }


def describe(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe the provenance of several models' metrics on the same pairs, by short name, in a sentence."""
    one = next(iter(measured.values()))
    data = one["benchmark"] or f"{one['pairs']} (not a standard benchmark)"
    published = () if one["benchmark"] is None else SIZES[one["benchmark"]][one["split"]].captions
    others = [count for count in published if count != one["n_texts"]]  # a split may exist in two sizes
    form = f" (another version of this split has {others[0]:,})" if others else ""
    codes = {_code(each): None for each in measured.values()}
    models = "; ".join(f"{name}: weights {each['model_digest']}" for name, each in measured.items())
    return (
        f"{data}, split {one['split']}, fingerprint {one['pairs_fingerprint']}: {one['n_images']:,} images, "
        f"{one['n_texts']:,} texts{form}. {models}. Measured by {' and '.join(codes)}."
    )


def _code(measured: Mapping[str, Any]) -> str:
    commit = measured["commit"] or ""
    where = f" ({commit[:12]}{'+changes' if '+' in commit else ''})" if commit else ""
    return f"repair_hf {measured['repair_hf']}{where}"
