"""What all trainings of a study on a dataset share: pairs, models and options, and what decides their results."""

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
from repair_hf.study.methods.method import TOY, Method, Records
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


class Setting:
    """A study on one dataset: its options, settled, and what its trainings share, loaded on first use.

    Args:
        name: The name of the dataset, and of its folder.
        options: The study's, with those of the dataset in their place.
        given: The images and captions.
        llm: The LLM of all methods.
        editor: The image editor of all methods.

    Attributes:
        models: LLM and editor of the study (None), and those of each swap.
        methods: All that exist.
        spacy_model: Parser of captions.

    Raises:
        UserError: If options contradict each other.
    """

    def __init__(
        self, name: str, options: StudyOptions, given: StudyPairsOptions, llm: LLMOptions, editor: EditorOptions
    ) -> None:
        _check_options(options, given)
        self.name, self.options, self.output = name, options, Path(options.output)
        self.folder, pairs = self.output / name, given.pairs
        self.size = OWN_DATA if pairs is not None else SIZES[options.size or "small"]
        self.world, self.max_queries = self.size.world, options.max_queries or self.size.max_queries
        self.pairs_options = PairsOptions(**asdict(given) | {"pairs": pairs or str(self.folder / "world")})
        self.is_toy = self.world is not None or is_world(self.pairs_options.pairs)
        self.models: dict[str | None, Models] = _models(options, llm, editor)
        self.methods = load_methods(options.swaps or ())
        self.spacy_model = options.spacy_model or ("world" if self.is_toy else PARSER)

    @cache  # noqa: B019
    def load(self, split: str | None) -> Pairs:
        """Load the pairs of a split, None for those to train on. A toy world is drawn, unless it is there."""
        if self.world is not None:
            with self.lock("world"):
                build_world(self.pairs_options.pairs, splits=dict(self.world), domain=DOMAIN)
        return load_wanted(self.pairs_options, split)

    @property
    def pairs(self) -> Pairs:
        return self.load(None)

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
    def content(self, split: str | None = None) -> str:
        """Digest what is trained from, and evaluated on: the same on any machine and in any folder."""
        read = [self.load(each) for each in dict.fromkeys((None, split))]
        data = [[each.images["image_id"][:], each.captions["caption"][:]] for each in read]
        records = self.records["record_id"][:] if self.options.records else []
        return digest([*data, self.base.digest, records])

    def lock(self, part: str, *, waits: bool = True) -> filelock.FileLock:
        """Return the lock of a part of the study on this dataset, for the processes that share it."""
        folder = self.output / ".locks"
        folder.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(folder / f"{self.name}--{part}.lock", timeout=-1 if waits else 0)

    @property
    def training(self) -> dict[str, Any]:
        """The options of `RepairConfig` that all methods share."""
        batch = self.options.batch_size or self.size.batch_size
        return {"per_device_train_batch_size": batch, **(self.options.training or {})}

    def mining(self, records: Records) -> dict[str, Any]:
        """Return the options of `mine`."""
        shared = {"max_queries": self.max_queries, "d_i2t": self.options.d_i2t, "d_t2i": self.options.d_t2i}
        return shared | dict(records.mine)

    def models_of(self, name: str) -> Models:
        """Return the LLM and the editor of a method or of its data, by name."""
        return self.models.get(name) or self.models[None]

    def means(self, method: Method) -> frozenset[str]:
        """Return what the data of a method need, as for a `Maker`; nothing if they were given."""
        is_given = self.options.records and method.records == REPAIR
        return frozenset() if is_given else method.means

    def lacks(self, method: Method) -> list[str]:
        """Return the options that a method needs and the study does not have."""
        llm, editor = self.models_of(method.name)
        places = {"llm": find_llm(llm)[0], "editor": find_editor(editor)[0]}
        means = () if self.is_toy else sorted(self.means(method))
        return [each for each in means if each == TOY or places.get(each) == "world"]

    def deciding(self, method: Method | None) -> dict[str, Any]:
        """Return the options that decide a method's results, besides its settings and seed; None is the base.

        They name no folder of this machine, so that results can be kept beside a recipe.
        """
        pairs = _deciding(self.pairs_options, but=("pairs", "image_folder"))
        if self.world is not None:
            pairs |= {"world": {**self.world, "domain": digest_of_domain(DOMAINS[DOMAIN]), "near": NEAR_MISSES}}
        found: dict[str, Any] = {"pairs": pairs, "model": self.options.model, "near": self.options.near_misses}
        if method is None:
            return found
        (llm, editor), used = self.models_of(method.name), self.means(method)
        found |= {"training": self.training}
        if method.records and used:
            found |= {"mine": self.mining(method.records), "synthesize": dict(method.records.synthesize)}
        found |= {"llm": _deciding(llm), "prompts": prompts_of(llm).digest()} if "llm" in used else {}
        found |= {"editor": _deciding(editor)} if "editor" in used else {}
        return found | ({"spacy_model": self.spacy_model} if "spacy_model" in used else {})

    @cache  # noqa: B019
    def digest(self, method: str, split: str) -> str:
        """Digest the options that decide a cell, besides its settings and seed."""
        return digest(self.deciding(self.methods.get(method)) | {"split": split})


def open_settings(
    options: StudyOptions, pairs: StudyPairsOptions, llm: LLMOptions, editor: EditorOptions
) -> list[Setting]:
    """Return the study on each dataset, in order. Contradictions raise a UserError."""
    if options.datasets is None:
        name = options.size or ("small" if pairs.pairs is None else "pairs")
        return [Setting(name, options, pairs, llm, editor)]
    known, found = [*fields_of(PairsOptions), *OF_DATASET], []
    for name, own in options.datasets.items():
        _check_named("datasets", name, own, "pairs: data/flickr30k")
        if unknown := [each for each in own if each not in known]:
            raise UserError(f"`datasets` {name} has `{unknown[0]}`; a dataset may have {', '.join(known)}.")
        try:
            of_study = replace(options, datasets=None, **{key: own[key] for key in own if key in OF_DATASET})
            of_pairs = replace(pairs, **{key: own[key] for key in own if key not in OF_DATASET})
            found.append(Setting(name, of_study, of_pairs, llm, editor))
        except UserError as error:
            raise UserError(f"`datasets` {name}: {error}") from error
    return found


def _check_options(options: StudyOptions, given: StudyPairsOptions) -> None:
    pairs, known = given.pairs, {each.name for each in fields(RepairConfig) if each.init}
    if pairs is not None and options.size is not None:
        raise UserError(f"`size` {options.size} is one of the toy world, but `pairs` names {pairs}; leave one out.")
    if pairs is not None and options.model.startswith("world/") and not is_world(pairs):
        raise UserError(
            f"`model` {options.model} knows the toy world alone, and `pairs` names {pairs}; name the retriever to "
            "train."
        )
    for name in options.training or {}:
        if name in OWN_TRAINING:
            raise UserError(f"`training` has {name!r}, which the study sets itself; leave it out.")
        if name not in known:
            raise UserError(f"`training` has {name!r}, which `repair-hf train` does not know.")


def _deciding(options: Any, but: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options that decide a result and are not at their defaults."""
    ignored = {*but, *neutral_names(options)}
    return {name: value for name, value in changed(options).items() if name not in ignored}


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
