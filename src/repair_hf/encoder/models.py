"""Load a dual encoder of transformers: a checkpoint, or an adapter of peft, which is merged into its base."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForZeroShotImageClassification,
    PreTrainedModel,
    VisionTextDualEncoderModel,
)
from transformers.utils import cached_file
from transformers.utils.hub import extract_commit_hash

from repair_hf.encoder.loading import CONFIG, NAMED, check_weights, explained, has_file
from repair_hf.encoder.shipped import locate
from repair_hf.runtime.hub_access import settle_hub
from repair_hf.runtime.options import UserError

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
    model, how = locate(id_or_folder), {"dtype": _dtype(dtype), "attn_implementation": attn_implementation}
    settle_hub(model)
    if has_file(model, ADAPTER, revision):
        return _with_adapter(model, revision, how)
    with explained(model, KIND):
        config = AutoConfig.from_pretrained(model, revision=revision)
        model_class: Any = AutoModelForZeroShotImageClassification
        if config.model_type == "vision-text-dual-encoder":  # any two towers; not among the auto classes
            model_class = VisionTextDualEncoderModel
        told = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # `check_weights` names them
        loaded, found = model_class.from_pretrained(model, config=config, revision=revision, **how, **told)
    check_weights(model, found)
    if not Path(model).exists():  # an adapter that is trained on it names this commit
        loaded.config._commit_hash = extract_commit_hash(cached_file(model, CONFIG, revision=revision), None)
    return loaded


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
        own = [key for key in found.missing_keys if re.search(rf"{model.prefix}|modules_to_save", key)]
        if strange := [*own, *found.unexpected_keys]:
            raise UserError(
                f"`{adapter}` and its base `{name}` do not fit: {len(strange)} weights, such as "
                f"{', '.join(strange[:NAMED])}. Give the base that the adapter was trained on."
            )
        merged: PreTrainedModel = model.merge_and_unload()
    for parameter in merged.parameters():
        parameter.requires_grad_(True)
    merged.name_or_path = merged.config._name_or_path = adapter
    return merged
