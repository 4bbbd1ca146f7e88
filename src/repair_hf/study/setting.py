"""What all trainings of a study share: pairs, models and options, and what decides their results."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import filelock
from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.ledger_file import FILE
from repair_hf.pairs.dataset import Pairs, load_pairs, load_wanted
from repair_hf.pairs.truth import Truth, truth_of
from repair_hf.records.dataset import load_records
from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import PairsOptions, UserError, did_you_mean, fields_of
from repair_hf.runtime.run_folder import write_json
from repair_hf.runtime.stage import Stage, claim, differences
from repair_hf.study.losses import NEEDS
from repair_hf.study.making import Maker
from repair_hf.study.methods import DEFAULT, METHODS, PAPER, REPAIR, Records
from repair_hf.study.options import SIZES, Size, StudyOptions, StudyPairsOptions
from repair_hf.study.results import code_digest
from repair_hf.study.words import MODEL as PARSER
from repair_hf.synthesis.models import check_editor, check_llm
from repair_hf.synthesis.options import EditorOptions, LLMOptions
from repair_hf.toyworld.corpus import CAPTIONS, build_world, is_world
from repair_hf.training.config import RepairConfig

OWN_TRAINING = (
    "output_dir seed learning_rate num_train_epochs max_steps fill loss paper grid_weight grid_mean blend".split()
)
ON_RECORDS = [DEFAULT.name, PAPER]  # beside plain training: what `train` does by default, and with `paper`
DOMAIN, BASES, OTHER_SEED = "target", "web", 1  # of the toy world: its domain, the base's own, and a seed beside 0


class Setting:
    """The options of a study, settled, and what its trainings share, loaded on first use.

    Raises:
        UserError: If options contradict each other.
    """

    def __init__(
        self, options: StudyOptions, given: StudyPairsOptions, llm: LLMOptions, editor: EditorOptions
    ) -> None:
        _check_options(options, given)
        self.options, self.output, pairs = options, Path(options.output), given.pairs
        self.name = options.size or ("small" if pairs is None else "pairs")
        self.folder = self.output / self.name
        self.size = Size() if pairs is not None else SIZES[self.name]
        self.world, self.max_queries = self.size.world, options.max_queries or self.size.max_queries
        self.pairs_options = PairsOptions(**asdict(given) | {"pairs": pairs or str(self.folder / "world")})
        self.is_toy = self.world is not None or is_world(self.pairs_options.pairs)
        # instances of the base classes, which the stages know; one ledger for all
        self.llm = LLMOptions(**asdict(llm) | {"ledger": llm.ledger or f"{options.output}/{FILE}"})
        self.editor = EditorOptions(**asdict(editor))
        self.budgets: dict[str, list[str]] = options.budgets or {}
        self.spacy_model = options.spacy_model or ("world" if self.is_toy else PARSER)

    @cached_property
    def wanted(self) -> list[str]:
        """The methods of the study: those that are named, or with given records `ON_RECORDS`, or all.

        Raises:
            UserError: If a name is unknown.
        """
        for name in itertools.chain(self.options.methods, *self.budgets.values()):
            if name not in METHODS:
                meant = did_you_mean([name], METHODS)
                raise UserError(f"`methods` has {name!r}, which is unknown. {meant}Known: {', '.join(METHODS)}.")
        every = [name for name in METHODS if self.is_toy or name != "new-pairs"]
        return self.options.methods or (ON_RECORDS if self.options.records else every)

    def sources(self, name: str) -> list[Records | Maker]:
        """Return what is still to be made for a method: nothing for records that were given."""
        method = METHODS[name]
        return [] if self.options.records and method.data is REPAIR else list(method.sources.values())

    @cache  # noqa: B019
    def load(self, split: str = "train") -> Pairs:
        """Load the pairs of a split; `train` are those to train on. A toy world is drawn, unless it is there."""
        names = {"validation": self.options.validation_split, "test": self.options.test_split}
        if self.world is not None:
            with self.lock("world"):
                build_world(self.pairs_options.pairs, splits=dict(self.world), domain=DOMAIN)
        return load_wanted(self.pairs_options, names.get(split))

    @property
    def pairs(self) -> Pairs:
        return self.load()

    @property
    def size_of_data(self) -> tuple[int, int]:
        """The number of training images and captions; a toy world need not be drawn."""
        if self.world is not None:
            return self.world["train"], CAPTIONS * self.world["train"]
        return len(self.pairs.images), len(self.pairs.captions)

    @cached_property
    def kept(self) -> Pairs | None:
        """Pictures of the toy base's own domain, to measure what is kept; of a split and a seed of their own."""
        if self.world is None:
            return None
        splits = {"test": self.size.kept}
        with self.lock("kept"):
            folder = build_world(self.folder / "kept", splits=splits, seed=OTHER_SEED, domain=BASES)
        return load_pairs(folder, split="test")

    @cached_property
    def truth(self) -> Truth:
        """What is known to match among the training pairs; every method masks it."""
        return truth_of(self.pairs)[0]

    @cached_property
    def base(self) -> DualEncoder:
        """The retriever before any training. It chooses among candidates and must not be trained."""
        return self.retriever()

    @cached_property
    def records(self) -> Dataset | None:
        """The records that exist, checked and decoded once."""
        return load_records(list(self.options.records)) if self.options.records else None

    def retriever(self) -> DualEncoder:
        return DualEncoder.from_pretrained(self.options.model)

    def lock(self, part: str, *, waits: bool = True) -> filelock.FileLock:
        """Return the lock of a part of the study, for the processes that share it; it is free if its process ends."""
        folder = self.output / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(folder / f"{self.name}--{part}.lock", timeout=-1 if waits else 0)

    @property
    def training(self) -> dict[str, Any]:
        """The options of `RepairConfig` that all methods share."""
        batch = self.options.batch_size or self.size.batch_size
        return {"per_device_train_batch_size": batch, **(self.options.training or {})}

    def claim(self) -> None:
        """Record what decides the rows in the folder of the study.

        Raises:
            UserError: If the folder holds rows of other options, other data or other code.
        """
        claim(self.output, "study")
        inputs = {"pairs_fingerprint": self.pairs.fingerprint, "model_digest": self.base.digest, "code": code_digest()}
        now = Stage("study", None, (self.options, self.pairs_options, self.llm, self.editor), inputs).deciding
        path = self.output / "study.json"
        if not path.is_file():
            return write_json(path, now)
        if changes := differences(read_json(path, needs=None), now):
            raise UserError(
                f"{self.output} has rows of other options, data or code: {changes}. Give another --output, or move "
                f"{path.name} and rows/ away to train anew; what was paid stays."
            )

    def check(self, names: Sequence[str], splits: Sequence[str]) -> None:
        """Report a missing split, model or package before anything is paid, also in a dry run."""
        self.records  # noqa: B018  # loads and checks them
        for split in splits if self.world is None else ():
            self.load(split)
        if len(splits) > 1 and self.options.test_split == self.options.validation_split:
            raise UserError(
                f"`test_split` and `validation_split` are both {self.options.test_split}: settings would be chosen on "
                "the results. Name one learning rate and one number of epochs, or another split."
            )
        needed = {NEEDS[loss] for name in names if (loss := METHODS[name].loss) in NEEDS}
        if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
            raise UserError(f"`simclr` needs {missing[0]}: pip install 'repair-hf[study]', or leave this method out.")
        sources = [source for name in names for source in self.sources(name)]
        makers = [source for source in sources if isinstance(source, Maker)]
        if len(makers) < len(sources) or any(maker.answers for maker in makers):
            _check_knows(self, "llm", self.llm.llm)
            check_llm(self.llm)
        if len(makers) < len(sources) or any(maker.edits or maker.draws for maker in makers):
            _check_knows(self, "editor", self.editor.editor)
            check_editor(self.editor, self.llm, from_text=any(maker.draws for maker in makers))


def _check_knows(setting: Setting, option: str, model: str) -> None:
    if model.startswith("world") and not setting.is_toy:
        raise UserError(f"`{option}` {model} knows the toy world alone; name a model, or methods that ask none.")


def _check_options(options: StudyOptions, given: StudyPairsOptions) -> None:
    pairs = given.pairs
    if pairs is not None and options.size is not None:
        raise UserError(f"`size` {options.size} is one of the toy world, but `pairs` names {pairs}; leave one out.")
    if pairs is not None and options.model.startswith("world/") and not is_world(pairs):
        raise UserError(f"`model` {options.model} knows the toy world alone, and `pairs` names {pairs}; name another.")
    if own := set(OWN_TRAINING) & set(options.training or {}):
        raise UserError(f"`training` has {min(own)!r}, which the study sets itself; leave it out.")
    if unknown := [name for name in options.training or () if name not in fields_of(RepairConfig)]:
        raise UserError(f"`training` has {unknown[0]!r}, which `repair-hf train` does not know.")
