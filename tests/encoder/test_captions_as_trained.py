"""A caption gets the vector that its model was trained to give: with its end, its padding and its case."""

from __future__ import annotations

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    CLIPModel,
    CLIPTokenizer,
    GemmaTokenizer,
    Siglip2Tokenizer,
    SiglipImageProcessorPil,
    SiglipProcessor,
    SiglipTokenizer,
)

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.opening import open_retriever
from repair_hf.encoder.preprocessing import Preprocessor

CAPTIONS = ["a red circle", "circle", "the picture shows one triangle, painted blue", "a zebra"]
COLORS = ("red", "green", "blue")


def changed(clip: CLIPModel, processor, *, pad: bool, words: bool, reads: int = 2) -> tuple[CLIPModel, object]:
    """A CLIP with OpenAI's `eos_token_id` in its configuration, and a vocabulary that was extended."""
    processor, config = deepcopy(processor), deepcopy(clip.config)
    tokenizer = processor.tokenizer
    if words:
        tokenizer.add_tokens(["zebra"])
    if pad:
        tokenizer.add_special_tokens({"pad_token": "<pad>"})
    config.text_config.eos_token_id, config.text_config.vocab_size = reads, len(tokenizer)
    torch.manual_seed(0)
    model = CLIPModel(config).eval()
    return model, processor


def at_the_end(model: CLIPModel, tokenizer, caption: str) -> np.ndarray:
    """The vector at a caption's end token, by hand and without padding."""
    ids = tokenizer(caption, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        hidden = model.text_model(input_ids=ids).last_hidden_state[0]
        vector = model.text_projection(hidden[ids[0].tolist().index(tokenizer.eos_token_id)])
    return (vector / vector.norm()).numpy()


@pytest.mark.parametrize(("pad", "words"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("reads", [2, 5])
def test_captions_end_at_the_end_token(clip, clip_processor, pad, words, reads):
    model, processor = changed(clip, clip_processor, pad=pad, words=words, reads=reads)
    expected = np.stack([at_the_end(model, processor.tokenizer, caption) for caption in CAPTIONS])
    for batch_size in (1, 256):
        encoder = DualEncoder(deepcopy(model), processor, device="cpu", batch_size=batch_size)
        np.testing.assert_allclose(encoder.embed_texts(CAPTIONS), expected, atol=1e-5)
    assert encoder.model.config.text_config.eos_token_id == processor.tokenizer.eos_token_id  # saved with the model


def test_a_model_without_such_tokens_stays_as_it_is(clip, clip_processor):
    """OpenAI's configuration with its own vocabulary, whose highest id is the end."""
    model = json.loads(clip_processor.tokenizer.backend_tokenizer.to_str())["model"]
    vocab, end = model["vocab"], "<|endoftext|>"
    last = max(vocab, key=vocab.__getitem__)
    vocab[end], vocab[last] = vocab[last], vocab[end]
    processor = deepcopy(clip_processor)
    processor.tokenizer = CLIPTokenizer(vocab=vocab, merges=list(map(tuple, model["merges"])), model_max_length=32)
    clip.config.text_config.eos_token_id = clip.text_model.eos_token_id = 2
    encoder = DualEncoder(clip, processor, device="cpu")
    assert encoder.model.config.text_config.eos_token_id == encoder.model.text_model.eos_token_id == 2


def test_sentence_encoders_too(clip, clip_processor, sentence_folders):
    library = pytest.importorskip("sentence_transformers")
    model, processor = changed(clip, clip_processor, pad=True, words=True)
    expected = np.stack([at_the_end(model, processor.tokenizer, caption) for caption in CAPTIONS])
    loaded = library.SentenceTransformer(str(sentence_folders("clip")), device="cpu")
    (place,) = [module for module in loaded.modules() if isinstance(getattr(module, "model", None), CLIPModel)]
    place.model, place.processor = model, processor
    for batch_size in (1, 256):
        found = open_retriever(loaded, device="cpu", batch_size=batch_size).embed_texts(CAPTIONS)
        np.testing.assert_allclose(found, expected, atol=1e-5)


LETTERS = "▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
VOCABULARY = {token: k for k, token in enumerate(["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *LETTERS])}


def siglip_processor(kind: type) -> SiglipProcessor:
    return SiglipProcessor(SiglipImageProcessorPil(size={"height": 32, "width": 32}), kind(vocab=VOCABULARY))


def test_siglip_2_reads_lower_case_padded_at_the_end(siglip_folder):
    """Its checkpoints on the Hub name Gemma's tokenizer, which keeps the case. Both classes pad at the start."""
    config = AutoConfig.from_pretrained(siglip_folder)
    config.text_config.vocab_size = len(VOCABULARY)
    hub, own = (Preprocessor(siglip_processor(kind), config) for kind in (GemmaTokenizer, Siglip2Tokenizer))
    ids = [VOCABULARY[letter] for letter in "a▁red▁dog"]
    expected = [ids + [0] * (12 - len(ids))]
    assert hub.token_ids(["A Red DOG"]) == expected == own.token_ids(["A Red DOG"]) == own.token_ids(["a red dog"])
    plain = hub.processor.tokenizer
    assert plain("A")["input_ids"] != plain("a")["input_ids"]


def test_siglip_1_lowers_by_itself(siglip_folder, tmp_path):
    """`SiglipTokenizer` as its checkpoints on the Hub name it, with a vocabulary of its own."""
    library = pytest.importorskip("sentencepiece", reason="reads SigLIP 1's vocabulary: pip install sentencepiece")
    words = [f"{article} {color} {thing}" for article in ("a", "the") for color in COLORS for thing in ("dog", "cat")]
    places = {"model_prefix": str(tmp_path / "spiece"), "vocab_size": 24, "hard_vocab_limit": False}
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "minloglevel": 2}
    library.SentencePieceTrainer.train(sentence_iterator=iter(words), **places, **special)
    tokenizer = SiglipTokenizer(str(tmp_path / "spiece.model"), model_max_length=12)
    encoder = DualEncoder.from_pretrained(siglip_folder, device="cpu")
    processor = SiglipProcessor(encoder.preprocessor.processor.image_processor, tokenizer)
    encoder.model.config.text_config.vocab_size = len(tokenizer)
    read = Preprocessor(processor, encoder.model.config).token_ids
    assert read(["A Red DOG"]) == read(["a red dog"]) != read(["a red cat"])


def test_siglip_in_sentence_transformers_reads_lower_case(sentence_folders):
    library = pytest.importorskip("sentence_transformers")
    loaded = library.SentenceTransformer(str(sentence_folders("siglip")), device="cpu")
    plain = open_retriever(loaded, device="cpu")
    wanted = plain.embed_texts(["a red circle"])
    backend = loaded.tokenizer.backend_tokenizer
    from tokenizers import normalizers

    backend.normalizer = normalizers.Sequence([])  # now it keeps the case
    keeping = open_retriever(loaded, device="cpu")
    np.testing.assert_allclose(keeping.embed_texts(["A Red CIRCLE"]), wanted, atol=1e-6)
