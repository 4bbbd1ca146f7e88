"""Folders as `repair-hf evaluate` leaves them, without its ranks."""

import json
from pathlib import Path

from repair_hf.evaluation.comparison import verdict

SHARES = {"base": 0.0, "plain": 0.4, "repaired": 0.5}


def finish(folder: Path, command: str = "evaluate") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "versions.json").write_text(json.dumps({"command": command}))
    (folder / "summary.json").write_text("{}")
    return folder


def evaluated(
    folder: Path,
    shares: dict[str, float],
    *gains: tuple[str, str, float, float],
    images: int = 1000,
    split: str = "validation",
) -> None:
    """Write what `repair-hf evaluate` leaves: R@1 by model, and a model, its baseline and the bounds of their gain."""
    metrics = {
        name: {"t2i_R@1": share, "intervals": {"t2i_R@1": [share, share]}, "model": name}
        for name, share in shares.items()
    }
    for own in metrics.values():
        own |= {"random": {"t2i_R@1": 1 / images}, "n_images": images, "split": split}
    for name in shares if len(shares) > 1 else ("",):
        own = metrics.get(name) or metrics[next(iter(shares))]
        (finish(folder / name) / "metrics.json").write_text(json.dumps(own))
    if len(shares) > 1:
        rows = []
        for model, plain, low, high in gains:
            gain = {"difference": (low + high) / 2, "low": low, "high": high}
            row = {"model": model, "reference": plain, "queries": {"t2i": {"repaired": 3, "broken": 1}}}
            row["verdict"] = verdict([gain], images)
            rows.append(row | {"differences": {"t2i_R@1": gain}, "summary": {"mean_R@1": gain}})
        (finish(folder) / "metrics.json").write_text(json.dumps(metrics))
        compared = {"reference": next(iter(shares)), "differences": {}, "repair": rows}
        (folder / "differences.json").write_text(json.dumps(compared))
