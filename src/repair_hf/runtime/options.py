"""Options: dataclasses filled from defaults, a YAML recipe and the command line.

In:  dataclasses whose fields were made with `opt` or `need`, and the words of a command line.
Out: one filled instance of each. Flags beat `--config FILE.yaml`, which beats the defaults; whatever is not known
     stops the run. One word names a thing everywhere: recipe key = flag = dataclass field.
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from math import isfinite
from operator import ge, gt, le
from pathlib import Path
from typing import Any, Literal, NoReturn

import yaml

from repair_hf.runtime.flags import BOUNDS, Help, add_arguments, is_needed

SEEDS = 2**32  # from 0 up to this
DRAFT_JPEGS = (
    "For that file, decode large JPEGs at a half, quarter or eighth of their size: less than half of the work; of a photograph's pixels, "
    "99.9% off by up to 7 of 255, and single ones by up to 16."
)


class UserError(ValueError):
    """A mistake of the person at the keyboard, told in one line: what is wrong, what came, what to do."""


def opt(default: Any, help: str, **bounds: float) -> Any:
    """Declare an option with a default.

    Args:
        default: Its value if nobody sets it. A list is copied for each instance.
        help: Its line in `--help`.
        bounds: Any of `least`, `above` and `most`, which `check_bounds` enforces; `above` is an exclusive lower bound. Not for
            `RepairConfig`: transformers' `HfArgumentParser` reads its fields, too, and takes no other keys.
    """
    metadata = _metadata(help, bounds)
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def need(help: str, **bounds: float) -> Any:
    """Declare an option without a default, which the user must set. The arguments are those of `opt`."""
    return field(metadata=_metadata(help, bounds))


def _metadata(help: str, bounds: dict[str, float]) -> dict[str, Any]:
    told = {"help": help.replace("%", "%%")}  # argparse expands a single percent sign
    return told | ({BOUNDS: bounds} if bounds else {})


_BOUNDS = {"least": (ge, "at least"), "above": (gt, "above"), "most": (le, "at most")}


def check_bounds(options: Any) -> None:
    """Check each option of a dataclass against its bounds, and each value of an option that holds several. None passes.

    Raises:
        UserError: For the first value that is too small, too large, infinite, or not a number.
    """
    for each in fields(options):
        bounds = each.metadata.get(BOUNDS)
        value = getattr(options, each.name)
        for number in value if isinstance(value, list) else [value]:
            if not bounds or number is None:
                continue
            if not isfinite(number) or not all(_BOUNDS[name][0](number, bound) for name, bound in bounds.items()):
                wanted = " and ".join(f"{_BOUNDS[name][1]} {bound:g}" for name, bound in bounds.items())
                raise UserError(f"`{each.name}` must be {wanted}, got {number:g}.")


@dataclass
class PairsOptions:
    """Which images and captions, and which of them belong together."""

    _argument_group_name = "pairs"

    pairs: str = need(
        "Folder with captions.jsonl, caption JSON of COCO or of Karpathy (dataset_coco.json), Hub dataset id, or saved dataset folder."
    )
    image_folder: str | None = opt(None, "Where the images lie that a caption JSON names.")
    image_column: str = opt("image", "Column of a dataset that holds the image.")
    caption_column: str = opt("caption", "Column of a dataset that holds the caption or a list of captions.")
    split: str = opt("train", "Which split; `all` takes everything.")
    strict: bool = opt(False, "Refuse the data at the first kind of bad row instead of leaving such rows out.")
    benchmark: Literal["flickr30k", "coco", "coco30k"] | None = opt(
        None,
        "What the data are said to be: a split that has not the benchmark's size is refused; of coco30k, train is drawn.",
    )
    with_restval: bool = opt(
        False, "Count Karpathy's COCO split `restval` as part of `train`: 113,287 images, not 82,783."
    )


@dataclass(kw_only=True)
class EmbeddingOptions:
    """How images and captions are embedded; a base of the commands' own options."""

    _argument_group_name = "embedding"

    batch_size: int = opt(256, "Items encoded at once.")
    precision: Literal["fp32", "bf16", "fp16"] = opt(
        "fp32", "Of the encoder's products; the vectors are float32 anyhow. fp16 needs a GPU."
    )
    cache_images: bool = opt(
        False,
        "Keep all images as the encoder takes them, decoded and resized, in a memory-mapped file that training finds too.",
    )
    cache_folder: str | None = opt(None, "Folder of that file; by default Hugging Face's cache of assets.")
    draft_jpegs: bool = opt(False, DRAFT_JPEGS)

    def __post_init__(self) -> None:
        if self.draft_jpegs and not self.cache_images:
            raise UserError("`draft_jpegs` is for the file of `cache_images`; give both, or neither.")
        if self.cache_folder is not None and not self.cache_images:
            raise UserError(
                f"`cache_folder` {self.cache_folder} is for the file of `cache_images`; give both, or neither."
            )


@dataclass
class StageOptions:
    """Where a stage writes."""

    _argument_group_name = "stage"

    output: str = need("Folder of this stage's result.")
    dry_run: bool = opt(False, "Say what would be done and what it would cost, then stop.")


def parse(
    types: Sequence[type], argv: Sequence[str], prog: str, *, description: str | None = None, epilog: str | None = None
) -> tuple:
    """Fill each dataclass of `types` from the command line `argv`.

    Args:
        types: Dataclasses, in the order in which their instances are wanted.
        argv: The words after the command's name; may hold `--config FILE.yaml`. A first word without a flag is the value of the
            first option that is needed: `show runs/records` is `show --records runs/records`.
        prog: What the user typed to get here, such as `repair-hf mine`.
        description: First lines of `--help`.
        epilog: Last lines of `--help`, printed as they stand.

    Raises:
        UserError: If a key, flag or value is unknown or impossible, or a needed one is missing.
    """
    parser = _Parser(types, prog=prog, description=description, epilog=epilog)
    config, argv = _take_config(parser.name_first_word(list(argv)))
    recipe = [] if config is None else parser.recipe_as_flags(config)
    parser.refuse_unknown_flags(argv)
    try:
        return parser.fill([*recipe, *argv])
    except UserError:
        raise
    except ValueError as error:  # a dataclass's own check in __post_init__
        raise UserError(str(error)) from error


def as_flags(options: Any) -> list[str]:
    """The words of a command line that fill a dataclass as `options` is: what is needed, and what differs from its default."""
    values = {}
    for each in fields(options):
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if (value := vars(options)[each.name]) != default:
            values[each.name] = value
    return flags(values)


def flags(values: Mapping[str, Any]) -> list[str]:
    """Values by the names of their options, as the words of a command line; None is left out."""
    words = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        elif isinstance(value, dict):
            words.append(f"{flag}={json.dumps(value)}")
        elif value is not None:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return words


def _take_config(argv: list[str]) -> tuple[str | None, list[str]]:
    reader = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    reader.add_argument("--config")
    try:
        found, rest = reader.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise UserError(f"{error}; give the path of a YAML file.") from error
    return found.config, rest


class _Parser(argparse.ArgumentParser):
    """A parser of dataclasses that raises instead of leaving the process, and knows recipe files."""

    def __init__(self, types: Sequence[type], *, prog: str, description: str | None, epilog: str | None) -> None:
        epilog = _EVERY_COMMAND if epilog is None else f"{_EVERY_COMMAND}\n\n{epilog}"
        super().__init__(prog=prog, description=description, epilog=epilog, allow_abbrev=False, formatter_class=Help)
        self.types = types
        for each in types:
            add_arguments(self, each)
        self.known: dict[str, Field] = {f.name: f for t in types for f in fields(t) if f.init}
        self.first_needed = next((name for name, field in self.known.items() if is_needed(field)), None)
        word = "" if self.first_needed is None else f"[{self.first_needed.upper()}] "
        self.usage = f"{prog} {word}[--config FILE.yaml] [options]"

    def fill(self, argv: list[str]) -> tuple:
        """An instance of each dataclass."""
        values = vars(self.parse_args(argv))
        if not 0 <= values.get("seed", 0) < SEEDS:  # numpy's; whatever the command, before it has begun
            self.error(f"`seed` must lie between 0 and {SEEDS - 1}, got {values['seed']}")
        filled = tuple(
            each(**{field.name: values[field.name] for field in fields(each) if field.name in values})
            for each in self.types
        )
        for each in filled:
            check_bounds(each)
        return filled

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`.")

    def parse_known_args(self, args=None, namespace=None):
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"no flag takes {' '.join(map(repr, rest))}")
        return namespace, rest

    def name_first_word(self, argv: list[str]) -> list[str]:
        """Put before a bare first word the flag that it stands for."""
        is_bare = argv and not argv[0].startswith("-") and self.first_needed is not None
        return [f"--{self.first_needed}", *argv] if is_bare else argv

    def refuse_unknown_flags(self, argv: list[str]) -> None:
        """Argparse would first complain of what is missing, which hides the misspelt flag that was meant for it."""
        flags = [word.split("=")[0] for word in argv if word.startswith("--")]
        if unknown := [flag for flag in flags if flag not in self._option_string_actions]:
            raise UserError(f"unknown flags {unknown}. {self._remedy(unknown)}")

    def recipe_as_flags(self, path: str) -> list[str]:
        """Turn a recipe into the flags that it stands for, so that one set of checks serves both."""
        recipe = _read_recipe(path)
        if unknown := sorted(set(recipe) - set(self.known)):
            raise UserError(f"{path}: unknown keys {unknown}. {self._remedy(unknown)}")
        words: list[str] = []
        for key, value in recipe.items():
            if value is None or value == []:  # no flag can say these
                self._set_default(key, value)
            elif isinstance(value, bool) and self._takes_a_word(key):
                word = "yes" if value else "no"
                raise UserError(f"{path}: `{key}` is read as {value} by YAML; write it in quotes, such as '{word}'.")
            elif isinstance(value, list):
                if len(value) > 1 and self._option_string_actions[f"--{key}"].nargs != "+":
                    raise UserError(f"{path}: `{key}` takes one value, got the list {value}.")
                words += [f"--{key}", *map(str, value)]
            elif isinstance(value, dict):
                words.append(f"--{key}={json.dumps(value)}")
            else:
                words.append(f"--{key}={value}")
        return words

    def _takes_a_word(self, key: str) -> bool:
        """Whether an option is neither a switch nor a number."""
        action = self._option_string_actions[f"--{key}"]
        return action.nargs is None and action.type not in (int, float)

    def _set_default(self, key: str, value: Any) -> None:
        if is_needed(self.known[key]):
            raise UserError(f"`{key}` is empty in the recipe, and it has no default; give it a value.")
        if value is None and self.get_default(key) is not None:
            raise UserError(f"`{key}` is empty in the recipe; give it a value, or leave the line out.")
        self.set_defaults(**{key: value})

    def _remedy(self, words: list[str]) -> str:
        keys = [word.removeprefix("--").replace("-", "_") for word in words]
        near = {key: difflib.get_close_matches(key, self.known, n=1) for key in keys}
        hints = [f"`{names[0]}` for `{key}`" for key, names in near.items() if names]
        meant = f"Did you mean {', '.join(hints)}? " if hints else ""
        if not self.known:
            return f"`{self.prog}` takes no options."
        known = ", ".join(sorted(self.known)) if len(self.known) <= 40 else f"see `{self.prog} --help`"
        return f"{meant}Known: {known}."


def _read_recipe(path: str) -> dict[str, Any]:
    try:
        recipe = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"--config names {path}, which does not exist.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config names {path}, which cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if recipe is None:
        return {}
    if not isinstance(recipe, dict) or not all(isinstance(key, str) for key in recipe):
        raise UserError(f"{path} must hold `key: value` lines, one per option; got a {type(recipe).__name__}.")
    return recipe


# Text, not flags of the parser: both are taken before it sees the line, and TrainingArguments has a `debug` of its own.
_EVERY_COMMAND = """every command:
  --config FILE.yaml      a recipe: `key: value` lines, each key an option's name with underscores; flags beat it
  --debug                 show the whole traceback of an error"""
