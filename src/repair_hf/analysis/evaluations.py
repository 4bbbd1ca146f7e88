"""What `repair-hf evaluate` measured and compared below a run's folder.

Whether repair helped is the difference between a model that was trained with records and one that was trained without,
from the same base, for as many steps. The change from the base does not say it: plain training raises R@1, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from repair_hf.encoder.blend import find_trainings
from repair_hf.evaluation.comparison import short_names
from repair_hf.evaluation.provenance import uses_records
from repair_hf.runtime.files import read_json
from repair_hf.runtime.stage import command_of, is_finished


@dataclass(frozen=True)
class Comparison:
    """One model against another on the same queries."""

    model: Path  # its folder below that of the evaluation
    reference: Path
    row: Mapping[str, Any]  # of `differences.json`


@dataclass
class Evaluations:
    """What was evaluated below a run's folder. Of equal weights on equal pairs, the newest comparison counts."""

    measured: dict[Path, dict[str, Any]] = field(default_factory=dict)  # metrics by the folder of a model
    repairs: list[Comparison] = field(default_factory=list)  # with records against without, the newest evaluation last
    others: list[Comparison] = field(default_factory=list)  # other models, against the same models without records

    @property
    def decisive(self) -> Comparison | None:
        """The first comparison of the newest evaluation, on the split `test` if there is one: it judges the run."""
        on_test = [repair for repair in self.repairs if self.measured[repair.model]["split"] == "test"]
        repairs = on_test or self.repairs
        newest = [repair for repair in repairs if repair.model.parent == repairs[-1].model.parent]
        return newest[0] if newest else None

    @cached_property
    def names(self) -> dict[Path, str]:
        """A short name of each model, by its folder."""
        return {Path(folder): name for name, folder in short_names(list(map(str, self.measured))).items()}

    def title(self, comparison: Comparison) -> str:
        """Return the names of both models."""
        return f"{self.names[comparison.model]} − {self.names[comparison.reference]}"


def find_evaluations(root: Path | None) -> Evaluations:
    """Find what was evaluated below a folder, or nothing without one."""
    evaluations = Evaluations()
    for folder in stages_below(root, "evaluate"):
        if command_of(folder.parent) == "evaluate" or not is_finished(folder):
            continue  # a model of an evaluation of several, or of one that stopped
        if (folder / "differences.json").is_file():
            _add_comparisons(folder, evaluations)
        else:
            evaluations.measured[folder] = read_json(folder / "metrics.json", needs=("intervals",))
    return evaluations


def stages_below(root: Path | None, command: str) -> list[Path]:
    """Find the folders of a command in a run's folder: by name, and `round-2` before `round-10`."""
    folders = [] if root is None else [path.parent for path in root.rglob("versions.json")]
    own = [folder for folder in folders if command_of(folder) == command]
    return sorted(own, key=lambda folder: [(part.rstrip("0123456789"), len(part), part) for part in folder.parts])


def records_of(model: str) -> list[str]:
    """Return the folders or Hub ids of the records of a model's training, and of those that it went on from."""
    places: list[str] = []
    for options in find_trainings(model).values():
        if uses_records(options):
            own = options["records"]
            places += [own] if isinstance(own, str) else own
    return list(dict.fromkeys(places))


def _add_comparisons(folder: Path, evaluations: Evaluations) -> None:
    metrics, compared = read_json(folder / "metrics.json"), read_json(folder / "differences.json", needs=("repair",))
    evaluations.measured.update({folder / name: own for name, own in metrics.items()})
    repairs = [row for row in compared["repair"] if row["reference"] is not None]
    plain = {row["reference"] for row in repairs}
    changes = [
        {"model": name, "reference": compared["reference"], "differences": gains}
        for name, gains in compared["differences"].items()
    ]
    others = [row for row in changes if row["reference"] in plain]
    for rows, comparisons in ((others, evaluations.others), (repairs, evaluations.repairs)):
        for row in rows:
            comparison = Comparison(folder / row["model"], folder / row["reference"], row)
            weights = _weights(comparison, evaluations)
            for earlier in (evaluations.others, evaluations.repairs):
                earlier[:] = [other for other in earlier if _weights(other, evaluations) != weights]
            comparisons.append(comparison)


def _weights(comparison: Comparison, evaluations: Evaluations) -> list[str]:
    """Name the weights of both models and the pairs that they were measured on; folders where these are unknown."""
    folders = (comparison.model, comparison.reference)
    keys = ("model_digest", "pairs_fingerprint")
    return [str(evaluations.measured[folder].get(key, folder)) for folder in folders for key in keys]
