"""Where a metric comes from: data, weights and code, and what its model was trained on.

The first three are keys of `metrics.json`. What a model was trained on stands in the folder of `repair-hf train`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from repair_hf.encoder.blend import find_trainings, training_of
from repair_hf.pairs.benchmarks import check_name
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.files import read_table
from repair_hf.runtime.items import FILE
from repair_hf.runtime.options import PairsOptions, UserError
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


def uses_records(options: Mapping[str, Any]) -> bool:
    """Return whether a training used records."""
    return options.get("records") is not None and options.get("loss") != "none"


def plain_before(models: Mapping[str, Any]) -> dict[str, list[str]]:
    """Map each model that was trained with records to those before it without, of the same base and steps.

    Their difference shows what the records add. Both may be trained in several rounds, each from the one before.

    Args:
        models: The models by short name, in their order.
    """
    baselines: dict[str, list[str]] = {}
    plain: dict[str, list[_Start]] = {}
    for name, model in models.items():
        starts = _starts(model)
        if starts and starts[0].has_records:
            baselines[name] = [other for other, its_starts in plain.items() if _is_baseline(its_starts, starts)]
        elif starts:
            plain[name] = starts
    return baselines


class _Start(NamedTuple):
    """Where a training, or several in a row, began."""

    base: Any
    steps: tuple[int | None, ...]  # of the trainings since, the newest first
    has_records: bool  # in any of them


def _starts(model: Any) -> list[_Start]:
    """Return the start of a model's newest training, then that of the one before it, and so on."""
    starts: list[_Start] = []
    steps: tuple[int | None, ...] = ()
    has_records = False
    for options in find_trainings(model).values():
        steps += (training_of(model)[2].get("steps"),)
        has_records |= uses_records(options)
        starts.append(_Start(options.get("model_digest") or options.get("model"), steps, has_records))
        model = options.get("model")
    return starts


def _is_baseline(plain: Sequence[_Start], repaired: Sequence[_Start]) -> bool:
    """Whether both started somewhere from the same base, and only one of them has used records since."""
    return any(one._replace(has_records=True) == other for one in plain if not one.has_records for other in repaired)


def check_unseen(images: Collection[str], place: str, models: Mapping[str, Any]) -> dict[str, bool]:
    """Check that no model was trained on the pictures of a contrast set.

    Args:
        images: Their ids.
        place: The folder or Hub id of the set.
        models: The models by short name.

    Returns:
        Whether this is certain, by short name: False for a model, or a set, whose data are not known here.

    Raises:
        UserError: If a model was trained on one of them.
    """
    if not (Path(place) / FILE).is_file():
        return dict.fromkeys(models, False)
    table = _images_in(Path(place))
    digests = table.filter(pc.is_in(table["id"], pa.array(list(images), pa.string())))["digest"].to_numpy()
    certain = {}
    for name, model in models.items():
        count = images_seen(model, digests)
        if count:
            raise UserError(
                f"`contrast` {place}: {name} was trained on pictures of this set. Make it in a split that no model "
                "was trained on, such as test."
            )
        certain[name] = count == 0
    return certain


def images_seen(model: Any, digests: np.ndarray) -> int | None:
    """Count the images that a model was trained on, itself or the model that it started from.

    Args:
        model: The model.
        digests: Of the images, (n,) uint64, as `Pairs.items` has them.

    Returns:
        How many of them; None if it is none, as far as is known, and a folder does not say what it read.
    """
    sources: list[Path] = []  # the folders that name what it read: its own, and those of its records
    for folder, options in find_trainings(model).items():
        records = options.get("records") or []
        sources += [folder, *map(Path, [records] if isinstance(records, str) else records)]
    known = [source for source in sources if (source / FILE).is_file()]
    is_seen = np.zeros(len(digests), bool)
    for source in known:
        is_seen |= np.isin(digests, _images_in(source)["digest"].to_numpy())
    count = int(is_seen.sum())
    return count if count or (sources and len(known) == len(sources)) else None


def _images_in(folder: Path) -> pa.Table:
    """Return id and digest of each image that a stage read."""
    table = read_table(folder / FILE, needs=("kind", "id", "digest"))
    return table.filter(pc.equal(table["kind"], "image"))
