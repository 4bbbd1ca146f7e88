"""What all trainings of a study share: its datasets, models and options, and what decides their results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import filelock
from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.words import MODEL as PARSER
from repair_hf.pairs.dataset import Pairs, load_wanted
from repair_hf.pairs.truth import Truth, truth_of
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import PairsOptions, UserError, changed, fields_of, fill, neutral_names
from repair_hf.runtime.run_folder import digest
from repair_hf.study.methods.context import TOY
from repair_hf.study.methods.method import Method, Records
from repair_hf.study.methods.registry import load_methods
from repair_hf.study.methods.repair import REPAIR
from repair_hf.study.options import OWN_DATA, SIZES, StudyOptions, StudyPairsOptions
from repair_hf.synthesis.models import find_editor, find_llm, prompts_of
from repair_hf.synthesis.options import EditorOptions, LLMOptions
from repair_hf.toyworld.corpus import build_world, digest_of_domain, is_world
from repair_hf.toyworld.domains import DOMAINS
from repair_hf.training.config import RepairConfig

OF_DATASET = ("size", "model", "records", "near_misses", "max_queries", "paper")  # its own options, besides pairs
OWN_TRAINING = "output_dir seed learning_rate num_train_epochs max_steps fill loss paper grid_weight".split()
DOMAIN = "target"  # of the toy world
NEAR_MISSES = 2000  # images of a toy world's split, and captions, that are mined for near misses


class Models(NamedTuple):
    """An LLM and an image editor."""

    llm: LLMOptions
    editor: EditorOptions


class StudyData:
    """One dataset: its pairs, what is known to match, and the retriever before any training; loaded on first use.

    Args:
        name: Its name, and that of its folder.
        options: The study's, with those of the dataset in their place.
        given: Its images and captions.
    """

    def __init__(self, name: str, options: StudyOptions, given: StudyPairsOptions) -> None:
        pairs = given.pairs
        if pairs is not None and options.size is not None:
            raise UserError(
                f"`size` {options.size} is one of the toy world, but `pairs` names {pairs}; leave one out."
            )
        if pairs is not None and options.model.startswith("world/") and not is_world(pairs):
            raise UserError(
                f"`model` {options.model} knows the toy world alone, and `pairs` names {pairs}; name the retriever "
                "to train."
            )
        self.name, self.options, self.folder = name, options, Path(options.output) / name
        self.size = OWN_DATA if pairs is not None else SIZES[options.size or "small"]
        self.world, self.max_queries = self.size.world, options.max_queries or self.size.max_queries
        self.pairs_options = PairsOptions(**asdict(given) | {"pairs": pairs or str(self.folder / "world")})
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


class Setting:
    """The options of a study, settled. Contradictions raise a UserError.

    Attributes:
        models: The study's LLM and editor (None), and those of each swap.
        methods: All that exist.
        spacy_model: Parser of captions.
    """

    def __init__(
        self, options: StudyOptions, pairs: StudyPairsOptions, llm: LLMOptions, editor: EditorOptions
    ) -> None:
        known = {each.name for each in fields(RepairConfig) if each.init}
        for name in options.training or {}:
            if name in OWN_TRAINING:
                raise UserError(f"`training` has {name!r}, which the study sets itself; leave it out.")
            if name not in known:
                raise UserError(f"`training` has {name!r}, which `repair-hf train` does not know.")
        self.options, self.output = options, Path(options.output)
        self.datasets = {each.name: each for each in _datasets(options, pairs)}
        self.models: dict[str | None, Models] = _models(options, llm, editor)
        self.methods = load_methods(options.swaps or ())
        has_toys = all(each.is_toy for each in self.datasets.values())
        self.spacy_model = options.spacy_model or ("world" if has_toys else PARSER)

    def lock(self, name: str, *, waits: bool = True) -> filelock.FileLock:
        """Return the lock of a part of the study, for the processes that share it."""
        return lock(self.output, name, waits=waits)

    def training(self, data: StudyData) -> dict[str, Any]:
        """Return the options of `RepairConfig` that all methods share."""
        batch = self.options.batch_size or data.size.batch_size
        return {"per_device_train_batch_size": batch, **(self.options.training or {})}

    def models_of(self, name: str) -> Models:
        """Return the LLM and the editor of a method or of its data, by name."""
        return self.models.get(name) or self.models[None]

    def mining(self, records: Records, data: StudyData) -> dict[str, Any]:
        """Return the options of `mine`."""
        shared = {"max_queries": data.max_queries, "d_i2t": self.options.d_i2t, "d_t2i": self.options.d_t2i}
        return shared | dict(records.mine)

    def means(self, method: Method, data: StudyData) -> frozenset[str]:
        """Return what the data of a method need, as for a `Maker`; nothing if they were given."""
        is_given = data.options.records and method.records == REPAIR
        return frozenset() if is_given else method.means

    def lacks(self, method: Method) -> list[str]:
        """Return the options that a method needs on some dataset, and the study does not have."""
        llm, editor = self.models_of(method.name)
        places = {"llm": find_llm(llm)[0], "editor": find_editor(editor)[0]}
        means = frozenset().union(*(self.means(method, data) for data in self.datasets.values() if not data.is_toy))
        return sorted(each for each in means if each == TOY or places.get(each) == "world")

    def deciding(self, method: Method | None, data: StudyData) -> dict[str, Any]:
        """Return the options that decide a method's results, besides its settings and seed; None is the base.

        They name no folder of this machine, so that results can be kept beside a recipe.
        """
        pairs = _deciding(data.pairs_options, but=("pairs", "image_folder"))
        if data.world is not None:
            pairs |= {"world": {**data.world, "domain": digest_of_domain(DOMAINS[DOMAIN]), "near": NEAR_MISSES}}
        found: dict[str, Any] = {"pairs": pairs, "model": data.options.model, "near": data.options.near_misses}
        if method is None:
            return found
        found |= {"training": self.training(data)}
        (llm, editor), used = self.models_of(method.name), self.means(method, data)
        if method.records and used:
            found |= {"mine": self.mining(method.records, data), "synthesize": dict(method.records.synthesize)}
        found |= {"llm": _deciding(llm), "prompts": prompts_of(llm).digest()} if "llm" in used else {}
        found |= {"editor": _deciding(editor)} if "editor" in used else {}
        return found | ({"spacy_model": self.spacy_model} if "spacy_model" in used else {})

    @cache  # noqa: B019
    def digest(self, data: str, method: str, split: str) -> str:
        """Digest the options that decide a cell, besides its settings and seed."""
        return digest(self.deciding(self.methods.get(method), self.datasets[data]) | {"split": split})


def lock(output: Path, name: str, *, waits: bool = True) -> filelock.FileLock:
    folder = output / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(folder / f"{name}.lock", timeout=-1 if waits else 0)


def _deciding(options: Any, but: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options that decide a result and are not at their defaults."""
    ignored = {*but, *neutral_names(options)}
    return {name: value for name, value in changed(options).items() if name not in ignored}


def _datasets(options: StudyOptions, pairs: StudyPairsOptions) -> list[StudyData]:
    """Return the datasets of a study, in order."""
    if options.datasets is None:
        return [StudyData(options.size or ("small" if pairs.pairs is None else "pairs"), options, pairs)]
    known, found = [*fields_of(PairsOptions), *OF_DATASET], []
    for name, own in options.datasets.items():
        _check_named("datasets", name, own, "pairs: data/flickr30k")
        if unknown := [each for each in own if each not in known]:
            raise UserError(f"`datasets` {name} has `{unknown[0]}`; a dataset may have {', '.join(known)}.")
        try:
            of_study = replace(options, datasets=None, **{key: own[key] for key in own if key in OF_DATASET})
            of_pairs = replace(pairs, **{key: own[key] for key in own if key not in OF_DATASET})
            found.append(StudyData(name, of_study, of_pairs))
        except UserError as error:
            raise UserError(f"`datasets` {name}: {error}") from error
    return found


def _models(options: StudyOptions, llm: LLMOptions, editor: EditorOptions) -> dict[str | None, Models]:
    """Return the study's LLM and editor, and those of each swap: the study's, with the options that differ."""
    # instances of the base classes, which the stages know; one ledger for all
    llm = LLMOptions(**asdict(llm) | {"ledger": llm.ledger or options.output})
    found: dict[str | None, Models] = {None: Models(llm, EditorOptions(**asdict(editor)))}
    for name, own in (options.swaps or {}).items():
        _check_named("swaps", name, own, "llm: openai/gpt-4o")
        if taken := [each for each in ("max_usd", "max_calls", "ledger") if each in own]:
            raise UserError(f"`swaps` {name} has `{taken[0]}`, which is one for all methods; give it beside `swaps`.")
        known = changed(llm) | {"llm": llm.llm} | changed(editor) | {"editor": editor.editor}
        for kind in ("llm", "editor"):
            if _provider(own.get(kind, known[kind])) != _provider(known[kind]):
                known.pop(f"{kind}_base_url", None)  # the other provider is not at this address
        try:
            found[name] = Models(*fill([LLMOptions, EditorOptions], known | own, "swaps"))
        except UserError as error:
            raise UserError(f"`swaps` {name}: {error}") from error
    return found


def _check_named(option: str, name: str, own: Any, example: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"`{option}` has {name!r}, which cannot be a folder's name; use letters, digits and dashes.")
    if not isinstance(own, Mapping):
        raise UserError(f"`{option}` {name} has {own!r}; give its options by name, such as `{example}`.")


def _provider(id: str) -> str:
    return id.removeprefix("litellm:").partition("/")[0]
