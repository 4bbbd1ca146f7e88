"""What all trainings of a study share: its datasets, models and options, and what decides their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import filelock
from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.words import MODEL as PARSER
from repair_hf.pairs.dataset import Pairs, load_wanted
from repair_hf.pairs.truth import Truth, truth_of
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import PairsOptions, UserError, is_neutral
from repair_hf.runtime.run_folder import digest
from repair_hf.study.methods.method import TOY, Method, RepairVariant
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.options import (
    DataOptions,
    Models,
    StudyEditorOptions,
    StudyLLMOptions,
    StudyOptions,
    StudyPairsOptions,
    datasets_of,
    models_of,
)
from repair_hf.synthesis.models import find_editor, find_llm, prompts_of
from repair_hf.toyworld.corpus import build_world, digest_of_domain, is_world
from repair_hf.toyworld.domains import DOMAINS
from repair_hf.training.config import RepairConfig

OWN_TRAINING = "output_dir seed learning_rate num_train_epochs max_steps fill loss paper grid_weight".split()
DOMAIN = "target"  # of the toy world
NEAR_MISSES = 2000  # images of a toy world's split, and captions, that are mined for near misses


class StudyData:
    """One dataset: its pairs, what is known to match, and the retriever before any training; loaded on first use."""

    def __init__(self, options: DataOptions, output: Path) -> None:
        self.options, self.name, self.folder = options, options.name, output / options.name
        self.world = options.size.world
        given = options.pairs if self.world is None else replace(options.pairs, pairs=str(self.folder / "world"))
        self.pairs_options = PairsOptions(**asdict(given))
        self.is_toy = self.world is not None or is_world(self.pairs_options.pairs)

    def build(self) -> None:
        """Draw the toy world, unless it is there."""
        if self.world is not None:
            with lock(self.folder.parent, f"{self.name}--world"):
                build_world(self.pairs_options.pairs, splits=dict(self.world), domain=DOMAIN)

    @cached_property
    def pairs(self) -> Pairs:
        self.build()
        return load_wanted(self.pairs_options)

    @cached_property
    def truth(self) -> Truth:
        """What is known to match among the training pairs; every method masks it."""
        return truth_of(self.pairs)[0]

    @cached_property
    def base(self) -> DualEncoder:
        """The retriever before any training. It chooses among candidates and must not be trained."""
        return self.retriever()

    @cached_property
    def records(self) -> Dataset:
        """The records that exist, checked and decoded once."""
        return load_records(list(self.options.records))

    def retriever(self) -> DualEncoder:
        return DualEncoder.from_pretrained(self.options.model)

    @cache  # noqa: B019
    def held_out(self, split: str) -> Pairs:
        self.build()
        return load_wanted(self.pairs_options, split)

    @cache  # noqa: B019
    def content(self, split: str | None = None) -> str:
        """Digest what is trained from, and evaluated on: the same on any machine and in any folder."""
        read = [self.pairs] if split is None else [self.pairs, self.held_out(split)]
        data = [[each.images["image_id"][:], each.captions["caption"][:]] for each in read]
        records = self.records["record_id"][:] if self.options.records else []
        return digest([*data, self.base.digest, records])


@dataclass(eq=False)
class Setting:
    """The options of a study, settled."""

    options: StudyOptions
    datasets: Mapping[str, StudyData]
    models: Mapping[str | None, Models]  # the study's (None), and those of each swap
    methods: Mapping[str, Method]  # all that exist
    spacy_model: str  # parser of captions

    @property
    def output(self) -> Path:
        return Path(self.options.output)

    @property
    def results_file(self) -> Path:
        return Path(self.options.results or self.output / "results.parquet")

    def lock(self, name: str, *, waits: bool = True) -> filelock.FileLock:
        """Return the lock of a part of the study, for the processes that share it."""
        return lock(self.output, name, waits=waits)

    def training(self, data: StudyData) -> dict[str, Any]:
        """Return the options of `RepairConfig` that all methods share."""
        batch = self.options.batch_size or data.options.size.batch_size
        return {"per_device_train_batch_size": batch, **(self.options.training or {})}

    def mining(self, data: StudyData) -> dict[str, Any]:
        """Return the options of `mine` that all methods share."""
        return {
            "max_queries": data.options.max_queries,
            "d_i2t": self.options.d_i2t,
            "d_t2i": self.options.d_t2i,
        }

    def models_of(self, method: Method) -> Models:
        return self.models[method.swap if isinstance(method, RepairVariant) else None]

    def takes_records(self, method: Method, data: StudyData) -> bool:
        """Return whether the records that a method trains on were given."""
        return bool(data.options.records) and isinstance(method, RepairVariant) and method.product == "repair"

    def lacks(self, method: Method, data: StudyData) -> list[str]:
        """Return the options that a method needs and the study does not have."""
        means = () if self.takes_records(method, data) else sorted(method.means)
        own = self.models_of(method)
        places = {"llm": find_llm(own.llm)[0], "editor": find_editor(own.editor)[0]}
        return [each for each in means if not data.is_toy and (each == TOY or places.get(each) == "world")]

    def deciding(self, method: Method | None, data: StudyData) -> dict[str, Any]:
        """Return the options that decide a method's results, besides its settings and seed; None is the base.

        They name no folder of this machine, so that results can be kept beside a recipe.
        """
        pairs = _own(self.datasets[data.name].options.pairs, neutral=("pairs", "image_folder"))
        if data.world is not None:
            pairs |= {"world": {**data.world, "domain": digest_of_domain(DOMAINS[DOMAIN]), "near": NEAR_MISSES}}
        found: dict[str, Any] = {"pairs": pairs, "model": data.options.model, "near": data.options.near_misses}
        if method is None:
            return found
        found |= {"training": self.training(data)}
        if self.takes_records(method, data):
            return found
        models, used = self.models_of(method), method.means
        if isinstance(method, RepairVariant):
            found |= {"mine": self.mining(data) | dict(method.mine), "synthesize": dict(method.synthesize)}
        found |= {"llm": _own(models.llm), "prompts": prompts_of(models.llm).digest()} if "llm" in used else {}
        found |= {"editor": _own(models.editor)} if "editor" in used else {}
        return found | ({"spacy_model": self.spacy_model} if "spacy_model" in used else {})


def lock(output: Path, name: str, *, waits: bool = True) -> filelock.FileLock:
    folder = output / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(folder / f"{name}.lock", timeout=-1 if waits else 0)


def settle(
    options: StudyOptions, pairs: StudyPairsOptions, llm: StudyLLMOptions, editor: StudyEditorOptions
) -> Setting:
    """Make the setting from the options of `repair-hf study`. Contradictions raise a UserError."""
    known = {each.name for each in fields(RepairConfig) if each.init}
    for name in options.training or {}:
        if name in OWN_TRAINING:
            raise UserError(f"`training` has {name!r}, which the study sets itself; leave it out.")
        if name not in known:
            raise UserError(f"`training` has {name!r}, which `repair-hf train` does not know.")
    datasets = [StudyData(each, Path(options.output)) for each in datasets_of(options, pairs)]
    return Setting(
        options=options,
        datasets={each.name: each for each in datasets},
        models=models_of(options, llm, editor),
        methods=load_methods(options.swaps or ()),
        spacy_model=options.spacy_model or ("world" if all(each.is_toy for each in datasets) else PARSER),
    )


def _own(options: Any, neutral: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options that decide a result and are not at their defaults."""
    ignored = {*neutral, *(each.name for each in fields(options) if is_neutral(each))}
    values = {each.name: getattr(options, each.name) for each in fields(options)}
    defaults = {each.name: each.default for each in fields(options)}
    return {name: value for name, value in values.items() if name not in ignored and value != defaults[name]}
