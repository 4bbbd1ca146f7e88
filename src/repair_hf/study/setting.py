"""What all cells of a study share.

In:  the options of `repair-hf study`.
Out: `Setting`, which products and cells are handed; `settle` makes it of the options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.shipped import NARROW, RETRIEVERS
from repair_hf.evaluation.cases import Cases
from repair_hf.evaluation.compositional import CompositionalOptions, load_benchmarks
from repair_hf.pairs.dataset import Pairs, load_wanted
from repair_hf.pairs.words import MODEL as PARSER
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.study.methods.method import Method, Repair
from repair_hf.study.options import Size, StudyOptions, size_of
from repair_hf.study.turns import Turns
from repair_hf.synthesis.models import ORACLE, EditorOptions, LLMOptions, find_editor, find_llm
from repair_hf.toyworld.corpus import is_world
from repair_hf.toyworld.truth import Truth
from repair_hf.training.config import RepairConfig

WEAK_VERDICTS, WEAK_EDITS = 0.2, 0.3  # faults of the toy world's stand-ins for a weaker LLM and editor


@dataclass(frozen=True)
class Knobs:
    """The hyperparameters of a method.

    Args:
        learning_rate: Peak learning rate.
        epochs: Passes over the training captions.
        grid_weight: Lambda; 0 for a method without grids.
    """

    learning_rate: float
    epochs: float
    grid_weight: float = 0.0

    @property
    def name(self) -> str:
        """Names them in a folder's name."""
        weight = f"--lambda{self.grid_weight:g}" if self.grid_weight else ""
        return f"lr{self.learning_rate:g}--epochs{self.epochs:g}{weight}"

    def as_options(self) -> dict[str, float]:
        """By their names in `RepairConfig`."""
        return {
            "learning_rate": self.learning_rate,
            "num_train_epochs": self.epochs,
            "grid_weight": self.grid_weight,
        }


@dataclass(eq=False)
class Setting:
    """One dataset, one retriever, the same means for every method.

    Args:
        output: Folder of the study.
        pairs_options: The training pairs.
        model: The retriever, before any training.
        llm: The LLM of all methods; its ceilings hold for the study as a whole.
        editor: The image editor of all methods.
        spacy_model: Parses captions.
        mine: Options of `repair-hf mine` beside the pairs, by name.
        training: Options of `RepairConfig` that all methods share.
        type_command: Takes the words of a command, and runs it.
        weak_llm: A weaker stand-in, if there is one.
        weak_editor: A weaker stand-in, if there is one.
        other_model: Another retriever, if there is one.
        is_toy: Whether the pairs are the toy world's, whose LLM and editor know no other.
        split: What is reported on.
        validation_split: What hyperparameters are chosen on.
        compositional: Further benchmarks that every cell is put to.
        resamples: Of the images, for intervals.
        keep_models: Whether trained weights stay in the folders of the cells.
    """

    output: Path
    pairs_options: PairsOptions
    model: str
    llm: LLMOptions
    editor: EditorOptions
    spacy_model: str
    mine: dict[str, Any]
    training: dict[str, Any]
    type_command: Callable[..., None]
    weak_llm: LLMOptions | None = None
    weak_editor: EditorOptions | None = None
    other_model: str | None = None
    is_toy: bool = True
    split: str = "test"
    validation_split: str = "validation"
    compositional: CompositionalOptions = field(default_factory=CompositionalOptions)
    resamples: int = 2000
    keep_models: bool = False

    @cached_property
    def pairs(self) -> Pairs:
        """The training pairs."""
        return load_wanted(self.pairs_options)

    @cache  # noqa: B019
    def benchmarks(self, split: str) -> list[Cases]:
        """The compositional benchmarks; some are made of the pairs of the split that is measured on."""
        return load_benchmarks(self.compositional, self.held_out(split), replace(self.pairs_options, split=split))

    @cache  # noqa: B019
    def truth(self, split: str) -> Truth | None:
        """Tells true answers from wrong ones, where that can be known."""
        return Truth(self.held_out(split)) if self.is_toy else None

    @cached_property
    def base(self) -> DualEncoder:
        """The retriever before any training; chooses among candidates, and is not to be trained."""
        return self.encoder(self.model)

    @cache  # noqa: B019
    def held_out(self, split: str) -> Pairs:
        """The pairs of a split that is measured on."""
        return load_wanted(self.pairs_options, split)

    @cache  # noqa: B019
    def digest(self, model: str) -> str:
        """Names the weights of a retriever."""
        return self.base.digest if model == self.model else self.encoder(model).digest

    @cached_property
    def turns(self) -> Turns:
        """Which part of the study this process makes, where several work on it."""
        return Turns(self.output / ".locks")

    def encoder(self, model: str) -> DualEncoder:
        """A retriever as it is before training, loaded anew."""
        return DualEncoder.from_pretrained(model)

    def model_of(self, method: Method) -> str:
        """The retriever that a method trains."""
        return self.other_model if isinstance(method, Repair) and method.other_model else self.model

    def training_of(self, method: Method | None) -> dict[str, Any]:
        """The options of `RepairConfig` that a method is trained with, but for its hyperparameters; None is the retriever as it came."""
        return self.training | (dict(method.train) if isinstance(method, Repair) else {})

    def lacks(self, method: Method) -> list[str]:
        """The options that a method needs and that the study has not got."""
        return [option for option in sorted(method.means) if not self._has(option)]

    def _has(self, option: str) -> bool:
        find = {"llm": find_llm, "editor": find_editor}.get(option)
        if find is not None:
            return self.is_toy or find(getattr(self, option))[0] != "world"
        return getattr(self, option) is not None


def settle(
    options: StudyOptions,
    pairs_options: PairsOptions,
    llm: LLMOptions,
    editor: EditorOptions,
    compositional: CompositionalOptions,
    type_command: Callable[..., None],
) -> Setting:
    """The setting that options name.

    Raises:
        UserError: If they cannot be had together.
    """
    if llm.batch:
        raise UserError("`batch` answers within a day, and the study's methods ask at once; leave it out.")
    size, output = size_of(options, pairs_options), Path(options.output)
    is_toy = size.world is not None or is_world(pairs_options.pairs)
    if not is_toy and options.model in RETRIEVERS:
        raise UserError(
            f"`model` {options.model} knows the toy world alone, and `pairs` names {pairs_options.pairs}; name the retriever to train."
        )
    # the plain classes, whose words other commands read
    llm, editor = LLMOptions(**asdict(llm)), EditorOptions(**asdict(editor))
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
        weak_llm=_weak_llm(options, llm, is_toy),
        weak_editor=_weak_editor(options, editor, is_toy),
        other_model=options.other_model or (NARROW if is_toy else None),
        is_toy=is_toy,
        split=options.test_split,
        validation_split=options.validation_split,
        compositional=compositional,
        resamples=options.resamples,
        keep_models=options.keep_models,
    )


def _training(options: StudyOptions, size: Size) -> dict[str, Any]:
    """What all trainings share; the rest is the cells'."""
    given = options.training or {}
    own = {"output_dir", "seed", "learning_rate", "num_train_epochs", "max_steps", "grid_weight", "cache_folder"}
    known = {each.name for each in fields(RepairConfig) if each.init}
    for name in given:
        if name in own:
            raise UserError(f"`training` has {name!r}, which the study sets itself.")
        if name not in known:
            raise UserError(f"`training` has {name!r}, which `repair-hf train` does not know.")
    return {"per_device_train_batch_size": options.batch_size or size.batch_size, **given}


def _weak_llm(options: StudyOptions, llm: LLMOptions, is_toy: bool) -> LLMOptions | None:
    if options.weak_llm is not None:
        is_there = _provider(options.weak_llm) == _provider(llm.llm)
        return replace(llm, llm=options.weak_llm, llm_base_url=llm.llm_base_url if is_there else None)
    return replace(llm, verdict_noise=WEAK_VERDICTS) if llm.llm == ORACLE and is_toy else None


def _weak_editor(options: StudyOptions, editor: EditorOptions, is_toy: bool) -> EditorOptions | None:
    if options.weak_editor is not None:
        is_there = _provider(options.weak_editor) == _provider(editor.editor)
        return replace(
            editor, editor=options.weak_editor, editor_base_url=editor.editor_base_url if is_there else None
        )
    return replace(editor, drift=WEAK_EDITS) if editor.editor == "world" and is_toy else None


def _provider(id: str) -> str:
    """Whom an endpoint serves."""
    return id.removeprefix("litellm:").partition("/")[0]
