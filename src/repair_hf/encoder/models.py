"""Load a dual encoder by id or folder: a checkpoint, or an adapter of peft, which is merged into its base.

Whatever is wrong with its files is said in one line.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForZeroShotImageClassification,
    PreTrainedModel,
    VisionTextDualEncoderModel,
)
from transformers.utils import cached_file, extract_commit_hash  # seen with transformers 5.23
from transformers.utils import logging as transformers_logging

from repair_hf.encoder.shipped import locate
from repair_hf.runtime.hub_access import is_offline_id, settle_hub
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
ADAPTER = "adapter_config.json"
PROCESSOR = "processor_config.json"
KIND = "a dual encoder (CLIP, SigLIP, ...)"
Home = tuple[str, str | None]  # an id or folder, and the revision


def load_model(
    id_or_folder: str | Path,
    *,
    revision: str | None = None,
    dtype: str | torch.dtype = torch.float32,
    attn_implementation: str | None = None,
) -> PreTrainedModel:
    """Load a dual encoder from the Hub or a folder. An adapter is merged into its base, which may be one too.

    Raises:
        UserError: If it cannot be loaded, its weights are missing or damaged, or it is an adapter without its base.
    """
    wanted = _dtype(dtype)
    model, how = locate(id_or_folder), {"dtype": torch.float32, "attn_implementation": attn_implementation}
    settle_hub(model)
    if has_file(model, ADAPTER, revision):
        return _cast(_with_adapter(model, revision, how), wanted)
    with explained(model, KIND):
        config = AutoConfig.from_pretrained(model, revision=revision)
        model_class: Any = AutoModelForZeroShotImageClassification
        if config.model_type == "vision-text-dual-encoder":  # any two towers; not among the auto classes
            model_class = VisionTextDualEncoderModel
        told = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # `check_weights` names them
        loaded, found = model_class.from_pretrained(model, config=config, revision=revision, **how, **told)
    check_weights(model, found)
    loaded.hub_commit = _commit(model, CONFIG, revision)
    return _cast(loaded, wanted)


def weights_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the type of a model's weights, apart from its logit scale and bias."""
    return next(weight.dtype for weight in model.parameters() if weight.numel() > 1)


def homes(id_or_folder: str | Path, revision: str | None = None) -> tuple[Home, Home]:
    """Return where a model's processor and its configuration are: an adapter leaves the latter with its base."""
    model = locate(id_or_folder)
    if not has_file(model, ADAPTER, revision):
        return (model, revision), (model, revision)
    processor, config = homes(*base_of(model, revision))
    return (model, revision) if has_file(model, PROCESSOR, revision) else processor, config


def check_peft(what: str) -> None:
    """Raise a `UserError` if peft, which `what` needs, is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise UserError(f"{what} needs peft, which is not installed: `pip install 'repair-hf[peft]'`.")


def _commit(model: str, name: str, revision: str | None) -> str | None:
    """Return the commit of the Hub that a model was loaded from: an adapter that is trained on it names this one."""
    return None if Path(model).exists() else extract_commit_hash(cached_file(model, name, revision=revision), None)


def _cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Cast the weights in place. Logit scale and bias stay float32: bfloat16 would round a scale of 100 to 98.9."""
    for weight in (*model.parameters(), *model.buffers()):
        if weight.numel() > 1 and weight.is_floating_point():
            weight.data = weight.data.to(dtype)
    return model


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UserError(f"`dtype` takes float32, bfloat16 or float16, got {dtype}.")
    return found


def base_of(adapter: str | Path, revision: str | None = None) -> Home:
    """Return the model that an adapter was trained on, and its revision."""
    adapter = str(adapter)
    with explained(adapter, "an adapter of peft"):
        config = json.loads(Path(str(cached_file(adapter, ADAPTER, revision=revision))).read_text())
        name = config.get("base_model_name_or_path")
    if not name:
        raise UserError(f"`{adapter}` is an adapter whose {ADAPTER} names no base; add `base_model_name_or_path`.")
    return name, config.get("revision")


def _with_adapter(adapter: str, revision: str | None, how: dict[str, Any]) -> PreTrainedModel:
    check_peft(f"`{adapter}` is an adapter, which")
    from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict

    name, base_revision = base_of(adapter, revision)
    try:
        base = load_model(name, revision=base_revision, **how)
    except UserError as error:
        raise UserError(f"`{adapter}` is an adapter, and its base is needed too. {error}") from error
    with explained(adapter, f"an adapter of `{name}`"):
        config = PeftConfig.from_pretrained(adapter, revision=revision)
        model: Any = get_peft_model(base, config)
        found: Any = set_peft_model_state_dict(model, load_peft_weights(adapter, device="cpu", revision=revision))
        # The names of the adapters' own weights begin with this prefix; peft has no list of them. Seen with peft 0.21.
        own = [key for key in found.missing_keys if re.search(rf"{model.prefix}|modules_to_save", key)]
        if strange := [*own, *found.unexpected_keys]:
            raise UserError(
                f"`{adapter}` and its base `{name}` do not fit: {len(strange)} weights, such as "
                f"{', '.join(strange[:NAMED])}. Give the base that the adapter was trained on."
            )
        merged: Any = model.merge_and_unload()
    for parameter in merged.parameters():
        parameter.requires_grad_(True)
    merged.name_or_path = merged.config.name_or_path = adapter
    merged.hub_commit = _commit(adapter, ADAPTER, revision)
    return merged


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
        if is_offline_id(model) and not has_file(model, CONFIG):
            raise UserError(
                f"`{model}` is not a local folder, and this machine is offline and has not cached it. Run `hf "
                f"download {model}` with a connection, or give a folder."
            ) from error
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
    said = shorten(str(error), 300, placeholder=" …").rstrip(". ") or type(error).__name__
    if found := re.search(r"Unrecognized configuration class .*\.(\w+)Config'", str(error)):
        return (
            f"its {CONFIG} is of {found[1]}, and a model with `get_image_features` and `get_text_features` is needed. "
            "Give such a model, or one of sentence-transformers that reads images and texts."
        )
    if isinstance(error, pickle.UnpicklingError):
        return "its weights are a pickle that is damaged or would run code. Give a checkpoint with model.safetensors."
    if isinstance(error, SafetensorError):
        return f"its weights are damaged or cut short ({said}). Copy or download it again."
    return (
        f"{said}. Give a folder or Hub id with {CONFIG}, model.safetensors, tokenizer.json and the processor's files."
    )
