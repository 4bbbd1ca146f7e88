"""Load a dual encoder by id or folder: a checkpoint, or an adapter of peft, which is merged into its base.

Whatever is wrong with its files is said in one line. Code that a repository holds is never run.
"""

from __future__ import annotations

import importlib.util
import json
import pickle
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from transformers import MODEL_MAPPING, AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file, extract_commit_hash  # seen with transformers 5.23
from transformers.utils import logging as transformers_logging

from repair_hf.encoder.shipped import locate
from repair_hf.runtime.hub_access import is_offline_id, settle_hub
from repair_hf.runtime.options import UserError

# A file that only another program's model has, and how to get a checkpoint from it.
MODULES = "modules.json"
OTHER_FORMATS = {
    MODULES: "a sentence-transformers model. `mine`, `evaluate` and `synthesize` take it; to train it, make its data "
    "with `repair-hf export triplets`",
    "open_clip_config.json": "an open_clip model; give its version for transformers, which has a config.json",
}
CONFIG = "config.json"  # what every checkpoint has, also one that serves other programs too
# What `AutoModel` and `AutoProcessor` read. Never `training_args.bin`: it is a pickle that may hold a Hub token.
MODEL_FILES = """
    config.json adapter_config.json generation_config.json *.safetensors *.safetensors.index.json *processor*.json
    tokenizer*.json vocab.json vocab.txt merges.txt special_tokens_map.json added_tokens.json *.model
    chat_template.jinja
""".split()
NAMED = 3  # of several weights, in an error
ADAPTER = "adapter_config.json"
PROCESSOR = "processor_config.json"
KIND = "a dual encoder (CLIP, SigLIP, ...)"
WITH_CODE = (
    "its repository holds code, which this program does not run. Load it in Python and give the model to `mine`, or "
    "give its embeddings to `mine_false_positives`"
)
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
    *adapters, base = lineage(id_or_folder, revision)
    if adapters:
        check_peft(f"`{adapters[0][0]}` is an adapter, which")
    try:
        model = _load_checkpoint(*base, attn_implementation)
    except UserError as error:
        if not adapters:
            raise
        raise UserError(f"`{adapters[-1][0]}` is an adapter, and its base is needed too. {error}") from error
    for adapter, adapter_revision in reversed(adapters):
        model = _merge_adapter(model, adapter, adapter_revision)
    return _cast(model, getattr(torch, dtype) if isinstance(dtype, str) else dtype)


def weights_dtype(model: PreTrainedModel) -> torch.dtype:
    """Return the type of a model's weights, apart from its logit scale and bias."""
    return next(weight.dtype for weight in model.parameters() if weight.numel() > 1)


def lineage(id_or_folder: str | Path, revision: str | None = None) -> list[Home]:
    """Return where a model is, then of an adapter where its base is, and so on: the last one is a checkpoint.

    Raises:
        UserError: If an adapter names no base, or itself.
    """
    homes: list[Home] = [(locate(id_or_folder), revision)]
    while True:
        settle_hub(homes[-1][0])
        if not has_file(homes[-1][0], ADAPTER, homes[-1][1]):
            return homes
        base = base_of(*homes[-1])
        if base in homes:
            raise UserError(
                f"`{base[0]}` is an adapter that names itself as its base. Change `base_model_name_or_path` in its "
                f"{ADAPTER}."
            )
        homes.append(base)


def base_of(adapter: str | Path, revision: str | None = None) -> Home:
    """Return the model that an adapter was trained on, a folder by its absolute path, and its revision."""
    adapter = str(adapter)
    with explained(adapter, "an adapter of peft"):
        config = json.loads(Path(str(cached_file(adapter, ADAPTER, revision=revision))).read_text())
        name = config.get("base_model_name_or_path")
    if not name:
        raise UserError(f"`{adapter}` is an adapter whose {ADAPTER} names no base; add `base_model_name_or_path`.")
    name = locate(name)
    return str(Path(name).resolve()) if Path(name).is_dir() else name, config.get("revision")


def has_file(model: str, name: str, revision: str | None = None) -> bool:
    """Return whether a folder or Hub id holds a file."""
    if Path(model).is_dir():
        return (Path(model) / name).is_file()
    try:
        return cached_file(model, name, revision=revision) is not None
    except OSError:  # the file, the repository or the network is missing
        return False


def check_peft(what: str) -> None:
    """Raise a `UserError` if peft, which `what` needs, is not installed."""
    if importlib.util.find_spec("peft") is None:
        raise UserError(f"{what} needs peft, which is not installed: `pip install 'repair-hf[peft]'`.")


@contextmanager
def explained(model: str, what: str) -> Iterator[None]:
    """Turn any failure to load `what` of a model into a `UserError`, and silence all warnings meanwhile.

    Raises:
        UserError: If the model is of another program, or loading fails.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except (UserError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises plain Exceptions, and broken settings raise errors of any kind
        raise UserError(f"`{model}` {_reason(model, what, error)}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)


def _load_checkpoint(model: str, revision: str | None, attn_implementation: str | None) -> PreTrainedModel:
    """Load a model in float32, and check that it has all weights of its configuration: others would be random."""
    with explained(model, KIND):
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
        loaded, info = _class_of(model, config).from_pretrained(
            model,
            config=config,
            revision=revision,
            dtype=torch.float32,
            attn_implementation=attn_implementation,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
        )
    missing = [name for name in info["missing_keys"] if not name.endswith("position_ids")]  # a constant
    names = sorted([*missing, *(name for name, *_ in info["mismatched_keys"])])
    if names:
        raise UserError(
            f"`{model}` lacks {len(names)} weights, or they have another shape than its {CONFIG} says, such as "
            f"{', '.join(names[:NAMED])}. Copy or download the whole checkpoint again."
        )
    loaded.hub_commit = _commit(model, CONFIG, revision)
    return loaded


def _class_of(model: str, config: PreTrainedConfig) -> Any:
    """Return the class of a dual encoder; any with these two functions may be one."""
    model_class = MODEL_MAPPING.get(type(config), None)
    if hasattr(model_class, "get_image_features") and hasattr(model_class, "get_text_features"):
        return model_class
    if has_file(model, MODULES):
        raise UserError(f"`{model}` is {OTHER_FORMATS[MODULES]} ({MODULES} is there).")
    raise UserError(
        f"`{model}` is of the kind {config.model_type}, and a model with `get_image_features` and `get_text_features` "
        "is needed. Give such a model, or one of sentence-transformers that reads images and texts."
    )


def _merge_adapter(base: PreTrainedModel, adapter: str, revision: str | None) -> PreTrainedModel:
    from peft import PeftConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict

    with explained(adapter, f"an adapter of `{base.name_or_path}`"):
        config = PeftConfig.from_pretrained(adapter, revision=revision)
        model: Any = get_peft_model(base, config)
        weights = load_peft_weights(adapter, device="cpu", revision=revision)
        info: Any = set_peft_model_state_dict(model, weights)
        # The names of the adapters' own weights begin with this prefix; peft has no list of them. Seen with peft 0.21.
        missing = [name for name in info.missing_keys if re.search(rf"{model.prefix}|modules_to_save", name)]
        names = [*missing, *info.unexpected_keys]
        if names:
            raise UserError(
                f"`{adapter}` and its base `{base.name_or_path}` do not fit: {len(names)} weights, such as "
                f"{', '.join(names[:NAMED])}. Give the base that the adapter was trained on."
            )
        merged: Any = model.merge_and_unload()
    merged.requires_grad_(True)
    merged.name_or_path = merged.config.name_or_path = adapter
    merged.hub_commit = _commit(adapter, ADAPTER, revision)
    return merged


def _commit(model: str, name: str, revision: str | None) -> str | None:
    """Return the commit of the Hub that a model was loaded from: an adapter that is trained on it names this one."""
    return None if Path(model).exists() else extract_commit_hash(cached_file(model, name, revision=revision), None)


def _cast(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Cast the weights in place. Logit scale and bias stay float32: bfloat16 would round a scale of 100 to 98.9."""
    for weight in (*model.parameters(), *model.buffers()):
        if weight.numel() > 1 and weight.is_floating_point():
            weight.data = weight.data.to(dtype)
    return model


def _reason(model: str, what: str, error: Exception) -> str:
    """Say what is wrong with a model that could not be loaded, and what to do."""
    for name, other_format in OTHER_FORMATS.items():
        if has_file(model, name) and not has_file(model, CONFIG):
            return f"is {other_format} ({name} is there)."
    if is_offline_id(model) and not has_file(model, CONFIG):
        return (
            "is not a local folder, and this machine is offline and has not cached it. Run `hf download "
            f"{model}` with a connection, or give a folder."
        )
    if "trust_remote_code" in str(error):
        return f"cannot be loaded: {WITH_CODE}."
    start = f"{'' if Path(model).exists() else 'is not a local folder, and '}cannot be loaded as {what}: "
    if isinstance(error, pickle.UnpicklingError):  # torch's advice is to run its code
        return f"{start}its weights are a pickle that is damaged or would run code. Give one with model.safetensors."
    message = shorten(str(error), 300, placeholder=" …").rstrip(". ") or type(error).__name__
    return (
        f"{start}{message}. Download it again, or give a folder or Hub id with {CONFIG}, model.safetensors, "
        "tokenizer.json and the processor's files."
    )
