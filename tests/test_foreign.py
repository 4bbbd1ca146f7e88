"""What `src` uses of other libraries though they do not promise it: whether it is still there, and where it was seen.

A name is promised if its library exports it at the top and it has no leading underscore. Every other one stands in the
table below, with the release that it was last seen with. After a newer release has passed, write that one: here, in
`constraints.txt`, and in the comments that say "seen with".
"""

import ast
import importlib
import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version
from pins import pinned

PACKAGE = Path(__file__).parents[1] / "src" / "repair_hf"
SOURCES = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
SEEN_WITH = {
    "accelerate": "1.15.0",
    "datasets": "5.2.0",
    "diffusers": "0.42.1",
    "httpx": "0.28.1",
    "huggingface_hub": "1.33.0",
    "litellm": "1.106.2",
    "peft": "0.21.2",
    "transformers": "5.23.0",
}
# Library, and what is imported from one of its modules. All that is asked is that the name is there.
IMPORTED = """
accelerate       accelerate.utils.parse_flag_from_env
datasets         datasets.arrow_writer.ArrowWriter
datasets         datasets.exceptions.DatasetsError
datasets         datasets.features.features.require_decoding
datasets         datasets.search.FaissIndex
diffusers        diffusers.pipelines.auto_pipeline.AUTO_TEXT2IMAGE_PIPELINES_MAPPING
huggingface_hub  huggingface_hub.constants.ENDPOINT
huggingface_hub  huggingface_hub.constants.HF_HOME
huggingface_hub  huggingface_hub.errors.HFValidationError
huggingface_hub  huggingface_hub.errors.HfHubHTTPError
huggingface_hub  huggingface_hub.errors.OfflineModeIsEnabled
huggingface_hub  huggingface_hub.file_download.repo_folder_name
huggingface_hub  huggingface_hub.utils.validate_repo_id
litellm          litellm.llms.base_llm.chat.transformation.BaseLLMException
litellm          litellm.llms.custom_httpx.aiohttp_transport.LiteLLMAiohttpTransport
transformers     transformers.image_transforms.get_resize_output_image_size
transformers     transformers.image_transforms.resize
transformers     transformers.integrations.get_reporting_integration_callbacks
transformers     transformers.trainer_utils.SaveStrategy
transformers     transformers.trainer_utils.TrainOutput
transformers     transformers.utils.cached_file
transformers     transformers.utils.extract_commit_hash
""".split()
FOREIGN = dict(zip(IMPORTED[1::2], IMPORTED[::2], strict=True))
# Names with a leading underscore that are not of these libraries: of the standard library, which documents the first.
STANDARD = {"_replace", "_exit", "_get_help_string", "_format_action_invocation"}


def fingerprint(tmp_path):
    from datasets import Dataset

    rows = Dataset.from_dict({"a": [1, 2, 3]})
    return isinstance(rows._fingerprint, str) and Dataset(rows.data.table, fingerprint="x")._fingerprint == "x"


def indices(tmp_path):
    from datasets import Dataset

    rows = Dataset.from_dict({"a": [1, 2, 3]})
    return rows._indices is None and rows.select([2, 0])._indices.column(0).to_pylist() == [2, 0]


def unpacked(tmp_path):
    from datasets import config

    return Path(config.DOWNLOADED_DATASETS_PATH).name and Path(config.EXTRACTED_DATASETS_PATH).name


def offline(tmp_path):
    import datasets
    from huggingface_hub import constants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        is_on = not constants.is_offline_mode()
    return is_on and constants.is_offline_mode() and datasets.config.HF_HUB_OFFLINE is True


def class_name(tmp_path):
    from diffusers import DDIMScheduler, DiffusionPipeline

    class Drawing(DiffusionPipeline):
        def __init__(self, scheduler):
            super().__init__()
            self.register_modules(scheduler=scheduler)

    Drawing(DDIMScheduler()).save_pretrained(tmp_path)
    return DiffusionPipeline.load_config(tmp_path)["_class_name"] == "Drawing"


def auto_resize(tmp_path):
    from diffusers import FluxKontextPipeline

    return {"max_area", "_auto_resize"} <= inspect.signature(FluxKontextPipeline.__call__).parameters.keys()


def transport(tmp_path):
    import httpx
    from litellm.llms.custom_httpx.aiohttp_transport import LiteLLMAiohttpTransport

    ours = inspect.signature(LiteLLMAiohttpTransport.handle_async_request).parameters
    of_httpx = inspect.signature(httpx.HTTPTransport.handle_request).parameters
    return list(ours) == list(of_httpx) == ["self", "request"]


def litellm_tables(tmp_path):
    import litellm

    asked = inspect.signature(litellm.utils.get_optional_params).parameters
    priced = inspect.signature(litellm.cost_calculator.batch_cost_calculator).parameters
    return (
        {"model", "custom_llm_provider", "reasoning_effort", "drop_params"} <= asked.keys()
        and list(priced)[:2] == ["usage", "model"]
        and "input_cost_per_token" in litellm.model_cost["gpt-4o"]
        and hasattr(litellm, "suppress_debug_info")
    )


def adapters(tmp_path):
    import torch
    from peft import LoraConfig, get_peft_model

    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model = get_peft_model(layers, LoraConfig(r=1, target_modules=["0"], modules_to_save=["1"]))
    whole = model.base_model.model[1]
    return model.prefix == "lora_" and hasattr(whole, "modules_to_save") and hasattr(whole, "original_module")


def batch_samples(tmp_path):
    from transformers import Trainer

    asked = list(inspect.signature(Trainer.get_batch_samples).parameters)
    is_called = "self.get_batch_samples(" in inspect.getsource(inspect.getmodule(Trainer))
    return is_called and asked == ["self", "epoch_iterator", "num_batches", "device"]


def name_or_path(tmp_path):
    from transformers import CLIPConfig

    config = CLIPConfig()
    config.name_or_path = "a/b"
    return config.to_dict()["_name_or_path"] == "a/b"


def pooler_output(tmp_path, model):
    import torch

    text = model.get_text_features(input_ids=torch.zeros(1, 4, dtype=torch.long)).pooler_output
    image = model.get_image_features(pixel_values=torch.zeros(1, 3, 32, 32)).pooler_output
    return text.shape == image.shape == (1, model.config.projection_dim)


def by_pillow(tmp_path, folder):
    from transformers import AutoImageProcessor, CLIPImageProcessorPil

    return type(AutoImageProcessor.from_pretrained(folder, backend="pil")) is CLIPImageProcessorPil


# What is used -> library, a file that uses it, the words there, and whether it works.
USED = {
    "the fingerprint of a dataset": ("datasets", "pairs/sources.py", "data._fingerprint", fingerprint),
    "the rows of a selection": ("datasets", "pairs/dataset.py", "images._indices", indices),
    "where archives are unpacked": ("datasets", "pairs/cells.py", "config.EXTRACTED_DATASETS_PATH", unpacked),
    "going offline": ("huggingface_hub", "runtime/hub_access.py", "constants.HF_HUB_OFFLINE = ", offline),
    "a pipeline's class": ("diffusers", "synthesis/images.py", '["_class_name"]', class_name),
    "Kontext's own size": ("diffusers", "synthesis/images.py", '"_auto_resize"', auto_resize),
    "the transports": ("litellm", "llm/provider.py", "Transport.handle_async_request = ", transport),
    "a thread's transport": ("httpx", "llm/provider.py", "HTTPTransport.handle_request = ", transport),
    "LiteLLM's tables": ("litellm", "llm/cost.py", "cost_calculator.batch_cost_calculator", litellm_tables),
    "what peft wraps": ("peft", "encoder/blend.py", "module.original_module", adapters),
    "an adapter's own weights": ("peft", "encoder/models.py", "model.prefix", adapters),
    "batches of a step": ("transformers", "training/trainer.py", "super().get_batch_samples", batch_samples),
    "a configuration's origin": ("transformers", "encoder/embedder.py", '"_name_or_path"', name_or_path),
    "features of a tower": ("transformers", "encoder/dual_encoder.py", ".pooler_output", pooler_output),
    "processors without torchvision": ("transformers", "encoder/preprocessing.py", 'backend="pil"', by_pillow),
}


def release(library: str) -> str:
    return f"{library} {version(library)}; it was last seen with {SEEN_WITH[library]}"


@pytest.mark.parametrize("name", FOREIGN)
def test_an_imported_name_is_still_there(name):
    module, _, last = name.rpartition(".")
    try:
        found = hasattr(importlib.import_module(module), last)
    except ImportError:
        found = False
    assert found, f"{name} is gone from {release(FOREIGN[name])}"


@pytest.mark.parametrize("what", USED)
def test_what_is_used_still_works(what, tmp_path, clip, clip_folder):
    library, file, words, works = USED[what]
    assert words in SOURCES[file], f"{file} no longer uses {words}; take its row out of the table"
    given = {"model": clip, "folder": clip_folder}
    names = inspect.signature(works).parameters
    assert works(tmp_path, **{name: value for name, value in given.items() if name in names}), (
        f"{what} ({words} in {file}) is gone from {release(library)}"
    )


def test_the_table_is_whole():
    """No other name of these libraries is used that they do not export at the top, or that begins with _."""
    named = [re.findall(r"(?:def|class) (_\w+)|self\.(_\w+)", text) for text in SOURCES.values()]
    ours = {name for found in named for either in found for name in either}
    imported, private = set(), set()
    for text in SOURCES.values():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in SEEN_WITH:
                top = importlib.import_module(node.module.partition(".")[0])
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    if getattr(top, name, None) is not getattr(module, name):
                        imported.add(f"{node.module}.{name}")
            elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
                private.add(node.attr)
    assert imported == set(FOREIGN)
    assert private - ours - STANDARD == {"_fingerprint", "_indices"}


def test_the_releases_are_those_of_the_constraints_and_of_the_comments():
    pins = pinned("constraints.txt")
    assert {name: pins[name.replace("_", "-")] for name in SEEN_WITH} == SEEN_WITH
    said = {}
    for file, text in SOURCES.items():
        for listed in re.findall(r"seen\s+(?:# )?with ((?:\w+ [\d.]*\d(?: and )?)+)", text, re.IGNORECASE):
            for library, number in re.findall(r"(\w+) ([\d.]*\d)", listed):
                said.setdefault((library, number), []).append(file)
    for (library, number), files in said.items():
        assert Version(SEEN_WITH[library]).release[: number.count(".") + 1] == Version(number).release, files
    assert {library for library, _ in said} == set(SEEN_WITH)
