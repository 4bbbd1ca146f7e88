"""What many tests share: no network, one thread, a tiny CLIP made on the spot, a folder of small pictures.

`clip` is a fresh copy for each test. `clip_folder`, `clip_processor` and `pairs_folder` are made once per session: read them
only.
"""

from __future__ import annotations

import os
import shutil
import tempfile

_HOME = tempfile.mkdtemp(prefix="repair-hf-tests-")
os.environ |= {  # before any of the libraries is imported: they read these once
    "HF_HOME": _HOME,
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "TQDM_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "MPLBACKEND": "Agg",
}

import gc  # noqa: E402
import json  # noqa: E402
from copy import deepcopy  # noqa: E402
from pathlib import Path  # noqa: E402

import pytest  # noqa: E402
import torch  # noqa: E402
from PIL import Image, ImageDraw  # noqa: E402

torch.set_num_threads(1)

COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("circle", "square", "triangle")


# Files that start processes or run whole pipelines: begun first, or one worker would still be at the last when the other is through.
LONG = (
    "commands/test_demo.py commands/test_run.py synthesis/test_kill.py test_hub.py test_distributed.py synthesis/test_processes.py "
    "llm/test_faults.py synthesis/test_workers.py bench/test_train.py bench/test_mine.py analysis/test_report.py"
).split()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not str(item.path).endswith(tuple(LONG)))


def pytest_collection_finish() -> None:
    """Spare what is imported by now from garbage collection: the Trainer collects at the start of each training."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def clip_processor():
    """A CLIPProcessor for 32x32 pixels whose byte-pair vocabulary was learnt from a few captions."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import CLIPImageProcessorPil, CLIPProcessor, CLIPTokenizer

    start, end = "<|startoftext|>", "<|endoftext|>"
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.normalizer = normalizers.Lowercase()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    whole_words = [f"{letter}</w>" for letter in alphabet]
    trainer = trainers.BpeTrainer(
        vocab_size=800,
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        special_tokens=[*whole_words, start, end],
        show_progress=False,
    )
    bpe.train_from_iterator([caption for _, captions in _pictures() for caption in captions], trainer)
    learnt = json.loads(bpe.to_str())["model"]
    merges = [tuple(merge) for merge in learnt["merges"]]
    tokenizer = CLIPTokenizer(vocab=learnt["vocab"], merges=merges, model_max_length=32)
    size = {"height": 32, "width": 32}
    return CLIPProcessor(CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size), tokenizer)


@pytest.fixture(scope="session")
def _clip(clip_processor):
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    torch.manual_seed(0)
    tokenizer = clip_processor.tokenizer
    small = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=32,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **small,
    )
    vision = CLIPVisionConfig(image_size=32, patch_size=16, **small)
    model = CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=8))
    return model.eval()


@pytest.fixture
def clip(_clip):
    """A fresh copy of a CLIPModel of some ten thousand random weights."""
    return deepcopy(_clip)


@pytest.fixture(scope="session")
def clip_folder(_clip, clip_processor, tmp_path_factory) -> Path:
    """The model and its processor, as a user would have them on disk."""
    folder = tmp_path_factory.mktemp("clip")
    _clip.save_pretrained(folder)
    clip_processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def siglip_folder(tmp_path_factory) -> Path:
    """A tiny SiglipModel with its processor: other pixels than CLIP's, another way to pad."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import (
        PreTrainedTokenizerFast,
        SiglipConfig,
        SiglipImageProcessorPil,
        SiglipModel,
        SiglipProcessor,
        SiglipTextConfig,
        SiglipVisionConfig,
    )

    words = sorted({word for _, captions in _pictures() for text in captions for word in text.split()})
    tokens = Tokenizer(
        models.WordLevel({word: k for k, word in enumerate(["</s>", "<unk>", *words])}, unk_token="<unk>")
    )
    tokens.normalizer = normalizers.Lowercase()
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="</s>", unk_token="<unk>", eos_token="</s>")
    small = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    text = SiglipTextConfig(vocab_size=len(tokenizer), max_position_embeddings=12, **small)
    vision = SiglipVisionConfig(image_size=32, patch_size=16, **small)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("siglip")
    SiglipModel(SiglipConfig(text_config=text.to_dict(), vision_config=vision.to_dict())).save_pretrained(folder)
    SiglipProcessor(SiglipImageProcessorPil(size={"height": 32, "width": 32}), tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vlm_folder(tmp_path_factory) -> Path:
    """A tiny LLaVA of random weights with its processor: a vision-language model that knows bytes and says anything."""
    from tokenizers import pre_tokenizers
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        Qwen2Config,
        Qwen2Tokenizer,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(vocab={letter: k for k, letter in enumerate(alphabet)}, merges=[])
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>", "<image>"], special_tokens=True)
    tokenizer.eos_token = "<|im_end|>"
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
        "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    size = {"height": 32, "width": 32}
    processor = LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size=size),
        tokenizer,
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    )
    small = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    text = Qwen2Config(
        vocab_size=len(tokenizer),
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.5,  # far from zero, so that what it says depends on what it is asked
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **small,
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(image_size=32, patch_size=16, **small),
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("vlm")
    LlavaForConditionalGeneration(config).save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tokenizer_parts() -> tuple[dict[str, int], list[tuple[str, str]]]:
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>", "<|im_start|>"]
    return {word: row for row, word in enumerate(words)}, []


@pytest.fixture(scope="session")
def pix2pix_folder(tokenizer_parts, tmp_path_factory) -> Path:
    """InstructPix2Pix's classes with some ten thousand random weights."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionInstructPix2PixPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    vocab, merges = tokenizer_parts
    tokenizer = CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=200)
    text = CLIPTextConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=200,
                          bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.eos_token_id)  # fmt: skip
    pipeline = StableDiffusionInstructPix2PixPipeline(
        vae=AutoencoderKL(
            block_out_channels=(4, 4),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=1,
        ),  # fmt: skip
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=UNet2DConditionModel(
            block_out_channels=(4, 8),
            layers_per_block=1,
            in_channels=8,
            out_channels=4,
            norm_num_groups=1,
            attention_head_dim=2,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=16,
        ),  # fmt: skip
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    folder = tmp_path_factory.mktemp("instruct-pix2pix")
    pipeline.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory) -> Path:
    """Twelve pictures of 48x40 pixels with two captions each, and their captions.jsonl; no splits."""
    folder = tmp_path_factory.mktemp("pairs")
    lines = []
    for name, captions in _pictures():
        _draw(name).save(folder / name)
        lines.append(json.dumps({"image": name, "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def repaired():
    """Records of half of the captions and half of the images of `pairs_folder`, some of them of both, with made-up edits."""
    import random

    from datasets import Dataset

    from repair_hf.records.dataset import FEATURES

    rng, pictures, rows = random.Random(0), _pictures(), []
    captions = {f"{name}#{k}": text for name, texts in pictures for k, text in enumerate(texts)}
    for caption in rng.sample(sorted(captions), 12):
        fp = rng.choice([name for name, _ in pictures if not caption.startswith(name)])
        edit = Image.new("RGB", (48, 40), (rng.randrange(256), rng.randrange(256), rng.randrange(256)))
        rows.append({"direction": "t2i", "q_id": caption, "fp_id": fp, "edit_image": edit, "gt_id": caption[:-2]})
        rows[-1] |= {"q_text": captions[caption]}
    for name, texts in rng.sample(pictures, 6):
        for fp in rng.sample([caption for caption in captions if not caption.startswith(name)], 2):
            edit = f"{captions[fp]}, or rather {texts[0]}"
            rows.append({"direction": "i2t", "q_id": name, "fp_id": fp, "edit_text": edit, "gt_id": f"{name}#0"})
            rows[-1] |= {"fp_text": captions[fp], "gt_text": texts[0]}
    for number, row in enumerate(rows):
        row |= {"record_id": f"{number:016x}", "fp_score": round(rng.random(), 3), "error_types": []}
    return Dataset.from_list([dict.fromkeys(FEATURES) | row for row in rows], features=FEATURES)


def _pictures() -> list[tuple[str, list[str]]]:
    """File name and captions of each picture of `pairs_folder`."""
    return [
        (
            f"{colour}_{shape}.png",
            [f"a {colour} {shape} on grey paper", f"the picture shows one {shape}, painted {colour}"],
        )
        for colour in COLOURS
        for shape in SHAPES
    ]


def _draw(name: str) -> Image.Image:
    colour, shape = Path(name).stem.split("_")
    image = Image.new("RGB", (48, 40), "lightgrey")
    pen = ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse((14, 10, 34, 30), fill=colour)
    elif shape == "square":
        pen.rectangle((14, 10, 34, 30), fill=colour)
    else:
        pen.polygon([(24, 10), (14, 30), (34, 30)], fill=colour)
    return image
