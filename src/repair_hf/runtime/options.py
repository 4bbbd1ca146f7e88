"""Declare options: dataclasses that a recipe or a command line fills, and those that several commands share.

One name serves everywhere: recipe key = flag = dataclass field. A field's declaration is the only place that says
what is known of it: default, help, bounds, whether it is neutral to the result, whether the short help shows it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Any, Literal, get_type_hints

IN_MEMORY = "in memory"  # in place of the id or folder of data or a model that Python was given
SEEDS = 2**32  # numpy takes seeds from 0 to below this


class UserError(ValueError):
    """A mistake of the user, explained in one line: what is wrong, the value received, what to do."""


def expect(value: Any, kind: type | tuple[type, ...], name: str, right: str) -> None:
    """Check the type of an argument; `right` says what to give, and how to get it.

    Raises:
        UserError: If it is of another type.
    """
    if not isinstance(value, kind):
        got = f"the text {value!r}" if isinstance(value, str) else f"a value of type {type(value).__name__}"
        got = f"the class {value.__name__}, not an instance" if isinstance(value, type) else got
        raise UserError(f"`{name}` must be {right}; got {got}.")


def opt(default: Any, help: str, *, neutral: bool = False, main: bool = False, **bounds: float) -> Any:
    """Declare an option with a default.

    Args:
        default: Its value if nobody sets it. A list is copied for each instance.
        help: Its line in `--help`.
        neutral: Whether it only decides where, whether or how fast a stage runs: a finished folder stays valid when a
            neutral option changes.
        main: Whether `--help` shows it; `--help-all` shows all.
        bounds: Any of `least`, `above` and `most`, which `Bounded` enforces; `above` is an exclusive lower bound.
    """
    declared = {"help": Declaration(help, neutral, main, bounds)}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=declared)
    return field(default=default, metadata=declared)


def need(help: str, *, neutral: bool = False, **bounds: float) -> Any:
    """Declare an option without a default, which the user must set. The arguments are those of `opt`."""
    return field(metadata={"help": Declaration(help, neutral, True, bounds)})


class Declaration(str):
    """The help of an option and what else it declares: `HfArgumentParser` hands all metadata on to argparse."""

    def __new__(cls, help: str, neutral: bool = False, main: bool = False, bounds: Any = None) -> Declaration:
        declaration = super().__new__(cls, help.replace("%", "%%"))  # argparse expands a single percent sign
        declaration.neutral = neutral
        declaration.main = main
        declaration.bounds = bounds or {}
        return declaration

    neutral: bool
    main: bool
    bounds: Mapping[str, float]


def declaration_of(field: Field) -> Declaration:
    """Return what a field declares; of a field of another library, the help alone."""
    declared = field.metadata.get("help", "")
    return declared if isinstance(declared, Declaration) else Declaration(declared.replace("%%", "%"))


def is_needed(field: Field) -> bool:
    """Return whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: Field) -> Any:
    """Return a field's default; a list or dictionary is a new one, and a needed field has None."""
    if is_needed(field):
        return None
    return field.default if field.default_factory is MISSING else field.default_factory()


def fields_of(kind: Any) -> list[str]:
    """Return the names of a dataclass's options."""
    return [field.name for field in fields(kind)]


def neutral_names(kind: Any) -> set[str]:
    """Return the names of a dataclass's neutral options: they do not affect the result of a stage."""
    return {field.name for field in fields(kind) if declaration_of(field).neutral}


def fill(kinds: Iterable[type], values: Mapping[str, Any], function: str) -> list[Any]:
    """Make an instance of each dataclass from keywords of a function, each of which belongs to one of them.

    Raises:
        UserError: If a keyword belongs to none of them, or a value is not valid.
    """
    named = [(kind, fields_of(kind)) for kind in kinds]
    known = [name for _, names in named for name in names]
    if unknown := [name for name in values if name not in known]:
        listed = ", ".join(sorted(known))
        raise UserError(f"`{function}` has no option {unknown}. {did_you_mean(unknown, known)}Known: {listed}.")
    return [kind(**{name: values[name] for name in names if name in values}) for kind, names in named]


def did_you_mean(words: Iterable[str], known: Iterable[str], *, spell: Callable[[str], str] = str) -> str:
    """Ask for the names nearest to words, as `spell` writes them. Initials and parts are near. Empty if none is."""
    names, hints = list(known), []
    for word in words:
        near = [name for name in names if "".join(part[:1] for part in name.split("_")) == word]
        near += [name for name in names if word in name.split("_")]
        near += difflib.get_close_matches(word, names, n=3, cutoff=0.7)
        if near:
            hints.append(f"{' or '.join(f'`{spell(name)}`' for name in near)} for `{spell(word)}`")
    return f"Did you mean {', '.join(hints)}? " if hints else ""


def as_flag(name: str) -> str:
    """Spell the name of an option as its flag."""
    return "--" + name.replace("_", "-")


def changed(options: Any) -> dict[str, Any]:
    """Return the values of options that are not at their defaults."""
    values = {field: getattr(options, field.name) for field in fields(options) if field.init}
    return {field.name: value for field, value in values.items() if value != default_of(field)}


def flags(values: Mapping[str, Any]) -> list[str]:
    """Return values by option name as the words of a command line; None is left out."""
    words = []
    for name, value in values.items():
        flag = as_flag(name)
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, dict):
            words.append(f"{flag}={json.dumps(value)}")
        elif isinstance(value, list):
            words += [flag, *map(str, value)] if value else []
        elif str(value).startswith("-"):  # as a word by itself it would be taken for a flag
            words.append(f"{flag}={value}")
        elif value is not None:
            words += [flag, str(value)]
    return words


class Bounded:
    """Base of the dataclasses of options: pydantic converts each value, and checks its type, choices and bounds.

    Values of flags, of recipes and of Python all pass here.

    Raises:
        UserError: For the first value that is not valid.
    """

    def __post_init__(self) -> None:
        from repair_hf.runtime.checking import check  # here, because a help needs no pydantic

        for name, adapter in _adapters(type(self)).items():  # type: ignore[arg-type]  # a class can be hashed
            try:
                object.__setattr__(self, name, check(adapter, getattr(self, name)))  # also of a frozen one
            except ValueError as error:
                raise UserError(f"`{name}` {error}") from error


@cache
def _adapters(kind: type) -> dict[str, Any]:
    """Return what checks each field of a dataclass."""
    from repair_hf.runtime.checking import adapter

    hints, adapters = get_type_hints(kind), {}
    for option in fields(kind):
        if not isinstance(option.metadata.get("help"), Declaration):
            hints[option.name] |= None  # transformers passes None for any type
        if option.init:
            adapters[option.name] = adapter(hints[option.name], declaration_of(option).bounds)
    return adapters


@dataclass
class PairsOptions(Bounded):
    """Which images and captions to load."""

    _argument_group_name = "pairs"

    pairs: str = need(
        "Images and captions: folder with captions.jsonl, table, COCO or Karpathy JSON, or dataset (Hub id or folder)."
    )
    image_folder: str | None = opt(None, "Folder of the images named in the caption JSON or table.", main=True)
    image_column: str = opt("image", "Column of images: the image itself, its path or, in a table, its URL.")
    caption_column: str = opt("caption", "Column with a caption or a list of captions; `a,b` reads both columns.")
    image_id_column: str | None = opt(
        None,
        "Column with the same value in all rows of an image. Default: image_id, filename, cocoid or id, if suitable.",
    )
    group: str | None = opt(
        None, "Column of groups, such as a product id: rows share a split and are never each other's negatives."
    )
    pairs_config: str | None = opt(None, "Configuration (subset) of the Hub dataset.")
    pairs_revision: str | None = opt(None, "Branch, tag or commit of the Hub dataset. Default: the newest.")
    split: str = opt("train", "Split to use; `all` uses every split.", main=True)
    strict: bool = opt(False, "Raise an error at the first bad row instead of skipping bad rows.")
    benchmark: Literal["flickr30k", "coco", "coco30k"] | None = opt(
        None, "Raise an error unless the split has this benchmark's size; coco30k also draws its training images."
    )
    with_restval: bool = opt(
        False,
        "Add COCO's extra training images, which Karpathy's JSON calls `restval`, to `train`: 113,287 images "
        "instead of 82,783.",
    )
    max_images: int | None = opt(
        None, "Most images of each split, drawn by a hash of their ids: always the same. Default: all.", least=1
    )
    max_captions: int | None = opt(None, "Most captions of an image: the first ones. Default: all.", least=1)


@dataclass(kw_only=True)
class TruthOptions(Bounded):
    """What counts as a match beside the annotation."""

    near_duplicates: float | None = opt(
        None,
        "Cosine from which two images count as the same photograph. Default: only images of equal pixels do.",
        above=0,
        most=1,
    )


@dataclass(kw_only=True)
class EncoderOptions(Bounded):
    """How a retriever is loaded and run."""

    query_prompt: str | None = opt(
        None, "Prompt of captions, for models of sentence-transformers; the model's own by default, '' for none."
    )
    document_prompt: str | None = opt(
        None, "Prompt of images, for models of sentence-transformers with a chat template; the model's own by default."
    )
    batch_size: int = opt(256, "Images or captions to encode at once.", neutral=True, main=True, least=1)
    precision: Literal["fp32", "bf16", "fp16"] = opt(
        "fp32", "Precision of the encoder; embeddings are always float32. fp16 needs a GPU.", main=True
    )
    model_revision: str | None = opt(None, "Branch, tag or commit of the model on the Hub. Default: the newest.")
    attn_implementation: str | None = opt(
        None, "Attention of transformers, such as sdpa or eager. Default: its own choice."
    )

    @property
    def of_encoder(self) -> EncoderOptions:
        """These options without what a subclass adds."""
        return EncoderOptions(**{name: getattr(self, name) for name in fields_of(EncoderOptions)})

    @property
    def how_to_load(self) -> dict[str, Any]:
        """Arguments of `open_retriever`."""
        arguments = vars(self.of_encoder)
        return {"revision": arguments.pop("model_revision"), **arguments}


@dataclass(kw_only=True)
class EmbeddingOptions(EncoderOptions):
    """How images and captions are embedded; a base of the commands' own options."""

    cache_images: bool = opt(
        False,
        "Keep resized images in a memory-mapped file, which other stages reuse.",
        neutral=True,
        main=True,
    )


@dataclass
class StageOptions(Bounded):
    """Where a stage writes."""

    output: str = need("Folder to write the result to.", neutral=True)
    dry_run: bool = opt(False, "Print what would be done and what it would cost, then stop.", neutral=True, main=True)
