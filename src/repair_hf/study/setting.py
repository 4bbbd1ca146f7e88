"""The experimental setting: the data, the models and the options that all trainings of a study share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.shipped import NARROW, RETRIEVERS
from repair_hf.evaluation.cases import Cases
from repair_hf.evaluation.compositional import CompositionalOptions, load_benchmarks
from repair_hf.evaluation.words import MODEL as PARSER
from repair_hf.pairs.dataset import Pairs, load_wanted
from repair_hf.pairs.truth import Truth, truth_of
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.runtime.run_folder import digest
from repair_hf.study.kept import KeptCells
from repair_hf.study.methods.method import TOY, Method, RepairVariant
from repair_hf.study.options import Size, StudyOptions, StudyPairsOptions, size_of
from repair_hf.study.swaps import Models, settle_swaps
from repair_hf.study.work_sharing import WorkSharing
from repair_hf.synthesis.models import find_editor, find_llm
from repair_hf.synthesis.options import EditorOptions, LLMOptions
from repair_hf.toyworld.corpus import is_world
from repair_hf.training.config import RepairConfig


@dataclass(frozen=True)
class Knobs:
    """The hyperparameters that the study tunes."""

    learning_rate: float
    epochs: float  # passes over the training captions
    grid_weight: float = 0.0  # lambda; 0 for a method without the grid loss

    @property
    def name(self) -> str:
        weight = f"--lambda{self.grid_weight:g}" if self.grid_weight else ""
        return f"lr{self.learning_rate:g}--epochs{self.epochs:g}{weight}"

    def as_options(self) -> dict[str, Any]:
        """Return them by their names in `RepairConfig`."""
        return {
            "learning_rate": self.learning_rate,
            "num_train_epochs": self.epochs,
            "grid_weight": self.grid_weight,
        }


@dataclass(eq=False)
class Setting:
    """One dataset, one retriever, and the same models and budget for every method."""

    output: Path
    pairs_options: PairsOptions
    model: str  # the retriever before any training
    llm: LLMOptions  # the LLM of all methods; its ceilings apply to the whole study
    editor: EditorOptions  # the image editor of all methods
    spacy_model: str  # parser of captions
    mine: dict[str, Any]  # options of `repair-hf mine` beside the pairs
    training: dict[str, Any]  # options of `RepairConfig` that all methods share
    type_command: Callable[..., None]  # runs a command, given its words
    swaps: Mapping[str, Models] = field(default_factory=dict)  # other LLMs and editors, by name
    other_model: str | None = None  # another retriever, if any
    is_toy: bool = True  # whether the pairs are the toy world's
    split: str = "test"  # split that is reported
    validation_split: str = "validation"  # split that hyperparameters are chosen on
    # compositional benchmarks for every training
    compositional: CompositionalOptions = field(default_factory=CompositionalOptions)
    resamples: int = 2000  # resamples of the images for confidence intervals
    keep_models: bool = False  # whether trained weights are kept
    records: tuple[str, ...] = ()  # records that exist; `repair` and what trains on its records takes them
    kept: KeptCells = field(default_factory=KeptCells)  # finished cells, beside the recipe

    @cached_property
    def pairs(self) -> Pairs:
        return load_wanted(self.pairs_options)

    @cached_property
    def truth(self) -> Truth:
        """What is known to match among the training pairs; every method masks it."""
        return truth_of(self.pairs)[0]

    @cached_property
    def given_records(self) -> Dataset:
        """The records that exist, checked and decoded once."""
        return load_records(list(self.records))

    @cached_property
    def base(self) -> DualEncoder:
        """The retriever before any training. It chooses among candidates and must not be trained."""
        return self.encoder(self.model)

    @cached_property
    def sharing(self) -> WorkSharing:
        """Locks that share the study's parts among processes."""
        return WorkSharing(self.output / ".locks")

    @cache  # noqa: B019
    def held_out(self, split: str) -> Pairs:
        return load_wanted(self.pairs_options, split)

    @cache  # noqa: B019
    def content_digest(self, split: str | None) -> str:
        """Digest the training pairs (None) or those of a split by ids and captions: the same on any machine."""
        pairs = self.pairs if split is None else self.held_out(split)
        return digest([pairs.images["image_id"][:], pairs.captions["caption"][:]])

    @cache  # noqa: B019
    def benchmarks(self, split: str) -> list[Cases]:
        """Load the compositional benchmarks; some are made from the pairs of the split."""
        return load_benchmarks(self.compositional, self.held_out(split), replace(self.pairs_options, split=split))

    @cache  # noqa: B019
    def digest(self, model: str) -> str:
        return self.base.digest if model == self.model else self.encoder(model).digest

    def encoder(self, model: str) -> DualEncoder:
        return DualEncoder.from_pretrained(model)

    def model_of(self, method: Method) -> str:
        if not method.other_model:
            return self.model
        assert self.other_model is not None, "`lacks` names it"
        return self.other_model

    def models_of(self, method: Method) -> Models:
        if isinstance(method, RepairVariant) and method.swap:
            return self.swaps[method.swap]
        return Models(self.llm, self.editor)

    def llm_of(self, variant: RepairVariant) -> LLMOptions:
        return self.models_of(variant).llm

    def editor_of(self, variant: RepairVariant) -> EditorOptions:
        return self.models_of(variant).editor

    def swapped(self, methods: Iterable[Method]) -> set[str]:
        """Return the swaps that some methods use."""
        return {method.swap for method in methods if isinstance(method, RepairVariant) and method.swap}

    def training_of(self, method: Method | None) -> dict[str, Any]:
        """Return a method's options of `RepairConfig`, without `Knobs`; None is the untrained retriever."""
        return self.training | (dict(method.train) if method else {})

    def needs(self, method: Method) -> frozenset[str]:
        """Return what a method uses: nothing to make records with, if they exist."""
        return frozenset() if self.has_records(method) else method.means

    def has_records(self, method: Method) -> bool:
        """Return whether the records that a method trains on were given."""
        return bool(self.records) and isinstance(method, RepairVariant) and method.product == "repair"

    def lacks(self, method: Method) -> list[str]:
        """Return the options that a method needs and the study does not have."""
        return [option for option in sorted(self.needs(method)) if not self._has(option)]

    def _has(self, option: str) -> bool:
        """The toy world's LLM and editor know no other pictures."""
        if option == TOY:
            return self.is_toy
        if option == "llm":
            return self.is_toy or find_llm(self.llm)[0] != "world"
        if option == "editor":
            return self.is_toy or find_editor(self.editor)[0] != "world"
        return getattr(self, option) is not None


def settle(
    options: StudyOptions,
    pairs_options: StudyPairsOptions,
    llm: LLMOptions,
    editor: EditorOptions,
    compositional: CompositionalOptions,
    type_command: Callable[..., None],
) -> Setting:
    """Make the setting from the options of `repair-hf study`. Contradictions raise a UserError."""
    size, output = size_of(options, pairs_options), Path(options.output)
    is_toy = pairs_options.pairs is None or is_world(pairs_options.pairs)
    if not is_toy and options.model in RETRIEVERS:
        raise UserError(
            f"`model` {options.model} knows the toy world alone, and `pairs` names {pairs_options.pairs}; "
            "name the retriever to train."
        )
    if options.cells and compositional.compositional:
        raise UserError("`cells` keeps no results of `compositional` benchmarks; leave one of the two out.")
    # instances of the base classes, which other commands know
    llm = LLMOptions(**asdict(llm) | {"ledger": llm.ledger or str(output)})  # one for all products
    editor = EditorOptions(**asdict(editor))
    pairs = {"pairs": str(output / "world")} if size.world else {}
    return Setting(
        output=output,
        pairs_options=PairsOptions(**asdict(pairs_options) | pairs),
        model=options.model,
        llm=llm,
        editor=editor,
        spacy_model=options.spacy_model or ("world" if is_toy else PARSER),
        mine={"max_queries": options.max_queries or size.max_queries, "d_i2t": options.d_i2t, "d_t2i": options.d_t2i},
        training=_training(options, size),
        type_command=type_command,
        swaps=settle_swaps(options.swaps or {}, Models(llm, editor), is_toy=is_toy),
        other_model=options.other_model or (NARROW if is_toy else None),
        is_toy=is_toy,
        split=options.test_split,
        validation_split=options.validation_split,
        compositional=compositional,
        resamples=options.resamples,
        keep_models=options.keep_models,
        records=tuple(options.records),
        kept=KeptCells(Path(options.cells) if options.cells else None, only=options.table),
    )


def _training(options: StudyOptions, size: Size) -> dict[str, Any]:
    given = options.training or {}
    own = "output_dir seed learning_rate num_train_epochs max_steps fill loss paper grid_weight".split()
    known = {each.name for each in fields(RepairConfig) if each.init}
    for name in given:
        if name in own:
            raise UserError(f"`training` has {name!r}, which the study sets itself; leave it out.")
        if name not in known:
            raise UserError(f"`training` has {name!r}, which `repair-hf train` does not know.")
    return {"per_device_train_batch_size": options.batch_size or size.batch_size, **given}
