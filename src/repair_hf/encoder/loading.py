"""Load a model's files, and say in one line what is wrong with those that cannot be loaded."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import parse_json

# A file that only another program's model has, and how to get a checkpoint from it.
MODULES = "modules.json"
OTHER_FORMATS = {
    MODULES: "a sentence-transformers model. `mine`, `evaluate` and `synthesize` take it; to train it, make its data "
    "with `repair-hf export triplets`",
    "open_clip_config.json": "an open_clip model; give its version for transformers, which has a config.json",
}
CONFIG = "config.json"  # what every checkpoint has, also one that serves other programs too
LEAST_COVERED = 0.9  # of a text tower's embeddings by the tokenizer; some models pad theirs to a round number
NAMED = 3  # of several weights, in an error


@contextmanager
def explained(model: str, what: str) -> Iterator[None]:
    """Turn any failure to load `what` of a model into a `UserError`, and silence all warnings meanwhile.

    Raises:
        UserError: If the model is of another program, or loading fails.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        if Path(model).is_dir() and (found := _other_format(model)):
            raise UserError(found)
        with warnings.catch_warnings(action="ignore"):
            yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises plain Exceptions, and broken settings raise errors of any kind
        if not Path(model).exists() and (found := _other_format(model)):
            raise UserError(found) from error
        here = "" if Path(model).exists() else "is not a local folder, and "
        raise UserError(f"`{model}` {here}cannot be loaded as {what}: {_reason(error)}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)


def check_weights(model: str, found: Mapping[str, Any]) -> None:
    """Check transformers' `output_loading_info`: weights that are missing would be random.

    Raises:
        UserError: If weights are missing or have other shapes than the configuration says.
    """
    missing = sorted(name for name in found["missing_keys"] if not name.endswith("position_ids"))  # a constant
    if missing:
        raise UserError(
            f"`{model}` lacks {len(missing)} weights, such as {', '.join(missing[:NAMED])}. "
            "Copy or download the whole checkpoint again."
        )
    shapes = [f"{name} {tuple(own)} for {tuple(wanted)}" for name, own, wanted in sorted(found["mismatched_keys"])]
    if shapes:
        raise UserError(
            f"`{model}` has {len(shapes)} weights of other shapes than its {CONFIG} says, such as "
            f"{', '.join(shapes[:NAMED])}. Give weights and {CONFIG} of one model."
        )


def check_tokenizer(model: str, tokenizer: Any, embedded: int) -> None:
    """Check that a tokenizer is its model's: transformers builds an empty one where the files are missing.

    Raises:
        UserError: If it has far fewer tokens than the text tower embeds, or more.
    """
    if len(tokenizer) < LEAST_COVERED * embedded or tokenizer.vocab_size > embedded:
        raise UserError(
            f"`{model}` lacks its tokenizer: the one found has {len(tokenizer):,} tokens, and the text tower embeds "
            f"{embedded:,}. Add tokenizer.json: `AutoTokenizer.from_pretrained(BASE).save_pretrained(FOLDER)`, where "
            "BASE is the id of the model that it was trained from."
        )


def _has_more_modules(model: str, name: str) -> bool:
    """Return whether a folder's modules.json lists more than the checkpoint, such as a pooling of its tokens."""
    path = Path(model) / name
    if name != MODULES or not path.is_file():
        return False
    listed = parse_json(path.read_bytes())
    return any(each["path"] and not each["type"].endswith(".Normalize") for each in listed)


def has_file(model: str, name: str, revision: str | None = None) -> bool:
    """Return whether a folder or Hub id holds a file."""
    if Path(model).is_dir():
        return (Path(model) / name).is_file()
    try:
        return cached_file(model, name, revision=revision) is not None
    except OSError:  # the file, the repository or the network is missing
        return False


def _other_format(model: str) -> str | None:
    """Say what a folder or Hub id holds in place of a checkpoint, if that is known."""
    for name, what in OTHER_FORMATS.items():
        if (not has_file(model, CONFIG) or _has_more_modules(model, name)) and has_file(model, name):
            return f"`{model}` is {what} ({name} is there)."
    return None


def _reason(error: Exception) -> str:
    said = " ".join(str(error).split())[:200].rstrip(". ") or type(error).__name__
    again = "Copy or download it again."
    if isinstance(error, pickle.UnpicklingError):
        return "its weights are a pickle that is damaged or would run code. Give a checkpoint with model.safetensors."
    if isinstance(error, SafetensorError):
        return f"its weights are damaged or cut short ({said}). {again}"
    if isinstance(error, KeyError):
        said = f"{said} is missing in one of its files"
    if isinstance(error, RecursionError):
        said = "one of its JSON files is nested too deeply"
    return (
        f"{said}. Give a folder or Hub id with {CONFIG}, model.safetensors, tokenizer.json and the processor's files."
    )
