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
from math import isfinite
from numbers import Real
from operator import ge, gt, le
from typing import Any, Literal, get_args, get_origin, get_type_hints

IN_MEMORY = "in memory"  # in place of the id or folder of data or a model that Python was given
SEEDS = 2**32  # numpy takes seeds from 0 to below this
_CHECKS = {"least": (ge, "at least"), "above": (gt, "above"), "most": (le, "at most")}


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
    metadata = {"help": Declaration.of(help, neutral, main, bounds)}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def need(help: str, *, neutral: bool = False, **bounds: float) -> Any:
    """Declare an option without a default, which the user must set. The arguments are those of `opt`."""
    return field(metadata={"help": Declaration.of(help, neutral, True, bounds)})


class Declaration(str):
    """The help of an option and what else it declares: `HfArgumentParser` hands all metadata on to argparse."""

    neutral: bool = False
    main: bool = False
    bounds: Mapping[str, float] = {}

    @classmethod
    def of(cls, help: str, neutral: bool, main: bool, bounds: Mapping[str, float]) -> Declaration:
        declaration = cls(help.replace("%", "%%"))  # argparse expands a single percent sign
        declaration.neutral, declaration.main, declaration.bounds = neutral, main, bounds
        return declaration


def declaration_of(field: Field) -> Declaration:
    """Return what a field declares; of a field of another library, the help alone."""
    found = field.metadata.get("help", "")
    return found if isinstance(found, Declaration) else Declaration(found)


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
    return [each.name for each in fields(kind)]


def is_neutral(field: Field) -> bool:
    """Return whether an option does not affect the result of a stage."""
    return declaration_of(field).neutral


def neutral_names(kind: Any) -> set[str]:
    """Return the names of a dataclass's neutral options."""
    return {each.name for each in fields(kind) if is_neutral(each)}


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


def changed(options: Any) -> dict[str, Any]:
    """Return the values of options that are not at their defaults."""
    values = {each.name: (getattr(options, each.name), default_of(each)) for each in fields(options) if each.init}
    return {name: value for name, (value, default) in values.items() if value != default}


def flags(values: Mapping[str, Any]) -> list[str]:
    """Return values by option name as the words of a command line; None is left out."""
    words = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, dict):
            words.append(f"{flag}={json.dumps(value)}")
        elif value not in (None, []):
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


class Bounded:
    """Base of the dataclasses of options: checks bounds and choices, also of each value of a list. None passes.

    Raises:
        UserError: For the first value that is too small, too large, infinite, not a number, or not among the choices.
    """

    def __post_init__(self) -> None:
        choices = _choices(type(self))  # type: ignore[arg-type]  # a class can be hashed, if not its instances
        for each in fields(self):  # type: ignore[arg-type]
            bounds, value = declaration_of(each).bounds, getattr(self, each.name)
            for one in value if isinstance(value, list) else [value]:
                if one is None:
                    continue
                if (known := choices[each.name]) and one not in known:
                    raise UserError(f"`{each.name}` must be {' or '.join(known)}, got {one!r}.")
                if bounds and not (isinstance(one, Real) and isfinite(one) and _lies_within(one, bounds)):
                    raise UserError(f"`{each.name}` must be {_in_words(bounds)}, got {one!r}.")


@cache
def _choices(type: type) -> dict[str, list[Any]]:
    """What each field accepts by its type, if that is a `Literal`, or an optional one or a list of one."""
    return {
        name: [value for part in (hint, *get_args(hint)) if get_origin(part) is Literal for value in get_args(part)]
        for name, hint in get_type_hints(type).items()
    }


def _lies_within(number: Any, bounds: Mapping[str, float]) -> bool:
    return all(_CHECKS[name][0](number, bound) for name, bound in bounds.items())


def _in_words(bounds: Mapping[str, float]) -> str:
    if set(bounds) == {"least", "most"}:
        return f"between {bounds['least']:,} and {bounds['most']:,}"
    return " and ".join(f"{_CHECKS[name][1]} {bound:,}" for name, bound in bounds.items())


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
        return EncoderOptions(**{each.name: getattr(self, each.name) for each in fields(EncoderOptions)})

    @property
    def how_to_load(self) -> dict[str, Any]:
        """Arguments of `open_retriever`."""
        found = vars(self.of_encoder)
        return {"revision": found.pop("model_revision"), **found}


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
class StageOptions:
    """Where a stage writes."""

    output: str = need("Folder to write the result to.", neutral=True)
    dry_run: bool = opt(False, "Print what would be done and what it would cost, then stop.", neutral=True, main=True)
