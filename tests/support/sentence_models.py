"""Fixtures with tiny sentence-transformers models of random weights, one of each kind that reads image and text."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_models import SMALL, seed

KINDS = ["clip", "siglip", "two_towers", "vision_llm"]
PROMPTS = {"query": "find: ", "document": "a picture: "}


@pytest.fixture(scope="session")
def sentence_folders(request, tmp_path_factory):
    """Kind -> folder, made when it is asked for. Only read it."""
    folders: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp(f"sentence-{kind}")
            BUILDERS[kind](request.getfixturevalue, folders[kind])
        return folders[kind]

    return folder


def clip(fixture, folder: Path) -> None:
    """The layout of `sentence-transformers/clip-ViT-B-32`: the checkpoint in a folder of its own."""
    shutil.copytree(fixture("clip_folder"), folder / "0_CLIPModel")
    kind = "sentence_transformers.models.CLIPModel"
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": kind}]))


def siglip(fixture, folder: Path) -> None:
    from sentence_transformers.base.modules import Transformer

    save([Transformer(str(fixture("siglip_folder")))], folder)


def two_towers(fixture, folder: Path) -> None:
    """As in jina-clip: a text encoder and an image encoder that have nothing in common but the space."""
    from sentence_transformers.base.modules import Dense, Router, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import (
        BertConfig,
        BertModel,
        PreTrainedTokenizerFast,
        ViTConfig,
        ViTImageProcessorPil,
        ViTModel,
    )

    seed()
    text, image = folder / "text", folder / "image"
    words = str(fixture("siglip_folder") / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=words, pad_token="</s>", unk_token="<unk>", model_max_length=12)
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=12, **SMALL)).save_pretrained(text)
    tokenizer.save_pretrained(text)
    ViTModel(ViTConfig(image_size=32, patch_size=16, **SMALL)).save_pretrained(image)
    ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(image)
    routes = {
        name: [Transformer(str(path)), Pooling(16, pooling_mode=how), Dense(16, 8)]
        for name, path, how in (("text", text, "mean"), ("image", image, "cls"))
    }
    save([Router(routes)], folder / "whole")
    for path in (text, image):
        shutil.rmtree(path)
    shutil.copytree(folder / "whole", folder, dirs_exist_ok=True)
    shutil.rmtree(folder / "whole")


def vision_llm(fixture, folder: Path) -> None:
    """An embedder that reads the last token of a vision LLM, with prompts of its own."""
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    llm = Transformer(str(fixture("vlm_folder")), transformer_task="feature-extraction")
    save([llm, Pooling(16, pooling_mode="lasttoken"), Normalize()], folder, prompts=PROMPTS)


def qwen2_vl(fixture, folder: Path) -> None:
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from tiny_models import byte_tokenizer
    from transformers import (
        Qwen2VLConfig,
        Qwen2VLForConditionalGeneration,
        Qwen2VLImageProcessorPil,
        Qwen2VLProcessor,
        Qwen2VLVideoProcessor,
    )

    marks = ("<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    tokenizer = byte_tokenizer(*marks)
    ids = dict(zip(marks, tokenizer.convert_tokens_to_ids(list(marks)), strict=True))
    template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}{% if "
        "part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
        "{% endfor %}<|im_end|>\n{% endfor %}"
    )
    size = {"shortest_edge": 56 * 56, "longest_edge": 56 * 56}
    parts = (Qwen2VLImageProcessorPil(size=size), tokenizer, Qwen2VLVideoProcessor(size=size))
    config = Qwen2VLConfig(
        text_config=dict(
            vocab_size=len(tokenizer),
            num_key_value_heads=2,
            max_position_embeddings=8192,
            rope_parameters={"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0},
            **SMALL,
        ),
        vision_config=dict(depth=1, embed_dim=16, num_heads=2, hidden_size=16, mlp_ratio=2),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    seed()
    raw = folder / "raw"
    Qwen2VLForConditionalGeneration(config).save_pretrained(raw)
    Qwen2VLProcessor(*parts, chat_template=template).save_pretrained(raw)
    llm = Transformer(str(raw), transformer_task="feature-extraction")
    save([llm, Pooling(16, pooling_mode="lasttoken"), Normalize()], folder, prompts=PROMPTS)
    shutil.rmtree(raw)


def save(modules: list, folder: Path, **options) -> None:
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=modules, device="cpu", **options).save_pretrained(str(folder), create_model_card=False)


BUILDERS = {each.__name__: each for each in (clip, siglip, two_towers, vision_llm, qwen2_vl)}
