"""The provenance of a metric: data, weights and code, as keys of `metrics.json` and as a sentence below a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repair_hf.pairs.benchmarks import check_name
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
    first = next(iter(measured.values()))
    data = first["benchmark"] or f"{first['pairs']} (not a standard benchmark)"
    codes = dict.fromkeys(_code(metrics) for metrics in measured.values())
    models = "; ".join(f"{name}: weights {metrics['model_digest']}" for name, metrics in measured.items())
    return (
        f"{data}, split {first['split']}, fingerprint {first['pairs_fingerprint']}: {first['n_images']:,} images, "
        f"{first['n_texts']:,} texts. {models}. Measured by {' and '.join(codes)}."
    )


def _code(metrics: Mapping[str, Any]) -> str:
    commit = metrics["commit"] or ""
    where = f" ({commit[:12]}{'+changes' if '+' in commit else ''})" if commit else ""
    return f"repair_hf {metrics['repair_hf']}{where}"
