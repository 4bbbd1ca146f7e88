"""Vectors equal those of a plain `transformers` loop; the cache never serves other weights, captions or images."""

import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import concatenate_datasets
from transformers import AutoModel, AutoProcessor

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.runtime.options import UserError


@pytest.fixture(scope="module")
def pairs(pairs_folder):
    return load_pairs(pairs_folder, split="all")


@pytest.fixture
def encoder(clip, clip_processor) -> DualEncoder:
    return DualEncoder(clip, Preprocessor(clip_processor, clip.config), device="cpu", batch_size=5)


def test_equals_a_plain_loop(folder, pairs):
    model, processor = AutoModel.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    padding = "max_length" if model.config.model_type == "siglip" else "longest"
    images, texts = [], []
    with torch.no_grad():
        for row in pairs.images:
            pixels = processor.image_processor(row["image"], return_tensors="pt")
            images.append(model.get_image_features(**pixels).pooler_output)
        for row in pairs.captions:
            ids = processor.tokenizer(row["caption"], padding=padding, max_length=12, return_tensors="pt")["input_ids"]
            texts.append(model.get_text_features(input_ids=ids).pooler_output)
    for batch_size in (256, 5):
        encoder = DualEncoder.from_pretrained(folder, device="cpu", batch_size=batch_size)
        for vectors, plain in zip(encoder.embed_pairs(pairs), (images, texts), strict=True):
            plain = torch.nn.functional.normalize(torch.cat(plain)).numpy()
            assert (vectors.dtype, vectors.shape) == (np.float32, plain.shape)
            np.testing.assert_allclose(vectors, plain, atol=1e-5)


def test_runs_where_its_process_computes_unless_a_device_is_given(clip_folder, monkeypatch):
    here = SimpleNamespace(device=torch.device("meta"))
    monkeypatch.setattr("repair_hf.encoder.embedder.processes", lambda: here)
    for device, name in ((None, "meta"), ("cpu", "cpu")):
        encoder = DualEncoder.from_pretrained(clip_folder, device=device)
        assert {encoder.device.type, *(value.device.type for value in encoder.model.parameters())} == {name}


def test_all_forms_of_images_give_the_same(encoder, pairs, tmp_path):
    whole = encoder.embed_images(pairs.images["image"])
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-6)
    store = PixelStore(pairs.images, "image", encoder.preprocessor, tmp_path)
    for images in (list(pairs.images["image"]), store, store[:]):
        np.testing.assert_array_equal(encoder.embed_images(images), whole)


def test_order_of_captions_is_kept_and_equal_ones_have_equal_vectors(encoder):
    captions = ["a red circle", "red", "a red circle on grey paper", "red", "the picture shows one square", "a"] * 3
    vectors = encoder.embed_texts(captions)
    np.testing.assert_array_equal(vectors[1], vectors[3])
    np.testing.assert_array_equal(vectors[:6], vectors[6:12])
    for caption, vector in zip(captions[:6], vectors, strict=False):
        np.testing.assert_allclose(vector, encoder.embed_texts([caption])[0], atol=1e-6)


def test_stored_half_precision_becomes_float32(clip, clip_processor, tmp_path):
    clip.half().save_pretrained(tmp_path)
    clip_processor.save_pretrained(tmp_path)
    encoder = DualEncoder.from_pretrained(tmp_path, device="cpu")
    assert {tensor.dtype for tensor in encoder.model.parameters()} == {torch.float32}


def test_digest_survives_saving_and_changes_with_any_weight(encoder, tmp_path):
    before = encoder.digest
    encoder.model.save_pretrained(tmp_path)
    encoder.preprocessor.save_pretrained(tmp_path)
    assert DualEncoder.from_pretrained(tmp_path, device="cpu").digest == before
    for parameter in (encoder.model.logit_scale, encoder.model.text_projection.weight):
        with torch.no_grad():
            parameter += 1e-3
        assert encoder.digest != before
        before = encoder.digest


def test_cache_serves_the_same_weights_and_data_alone(encoder, pairs_folder, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    data, cache = shutil.copytree(pairs_folder, tmp_path / "data"), tmp_path / "cache"
    pairs = load_pairs(data, split="all")
    first = encoder.embed_pairs(pairs, cache_folder=cache)
    again = encoder.embed_pairs(pairs, cache_folder=cache)
    assert not caplog.text
    assert sorted(path.name.split("-")[0] for path in cache.iterdir()) == ["captions", "images"]  # no draft is left
    assert all(isinstance(vectors, np.memmap) for vectors in again)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    with torch.no_grad():
        encoder.model.visual_projection.weight *= torch.linspace(0.9, 1.1, 16)
    tuned = encoder.embed_pairs(pairs, cache_folder=cache)
    assert not np.array_equal(tuned[0], first[0])
    np.testing.assert_array_equal(tuned[0], encoder.embed_images(pairs.images["image"]))
    assert len(list(cache.iterdir())) == 4
    lines = (data / "captions.jsonl").read_text()
    (data / "captions.jsonl").write_text(lines.replace("a red circle", "a dark red circle"))
    encoder.embed_pairs(load_pairs(data, split="all"), cache_folder=cache)
    assert len(list(cache.iterdir())) == 5  # what did not change is not embedded again
    (data / "red_circle.png").write_bytes((data / "blue_circle.png").read_bytes() + b"x")
    encoder.embed_pairs(load_pairs(data, split="all"), cache_folder=cache)
    assert len(list(cache.iterdir())) == 6


def test_precision_affects_only_the_products(encoder, clip, pairs, tmp_path):
    exact = encoder.embed_pairs(pairs, cache_folder=tmp_path)
    half = DualEncoder(clip, encoder.preprocessor, device="cpu", batch_size=5, precision="bf16")
    assert half.digest == encoder.digest
    found = half.embed_pairs(pairs, cache_folder=tmp_path)  # not those of the cache
    for one, other in zip(exact, found, strict=True):
        assert other.dtype == np.float32 and 1e-4 < np.abs(one - other).max() < 0.05
        np.testing.assert_allclose(np.linalg.norm(other, axis=1), 1, atol=1e-6)
    assert {tensor.dtype for tensor in clip.parameters()} == {torch.float32}


def test_captions_in_several_shares_keep_their_rows(encoder, pairs, tmp_path, monkeypatch):
    twice = Pairs(pairs.images, concatenate_datasets([pairs.captions, pairs.captions.select(range(5, 24))]))
    whole = encoder.embed_texts(twice.captions["caption"])
    monkeypatch.setattr("repair_hf.encoder.embedder.CAPTIONS_AT_ONCE", 7)
    store = PixelStore(pairs.images, "image", encoder.preprocessor, tmp_path)
    for vectors in (encoder.embed_pairs(twice, pixels=store), encoder.embed_pairs(twice, cache_folder=tmp_path)):
        np.testing.assert_array_equal(vectors[0], encoder.embed_images(pairs.images["image"]))
        np.testing.assert_allclose(vectors[1], whole, atol=1e-6)
        np.testing.assert_array_equal(vectors[1][5:24], vectors[1][24:])


def test_names_the_item_whose_vector_is_broken(encoder):
    token = encoder.preprocessor.token_ids(["yellow"])[0][1]
    with torch.no_grad():
        encoder.model.text_model.embeddings.token_embedding.weight[token] = torch.nan
    with pytest.raises(UserError, match="1 of 2 vectors are zero or not finite, first for caption 'a yellow square'"):
        encoder.embed_texts(["a red circle", "a yellow square", "a red circle"])
    with torch.no_grad():
        encoder.model.visual_projection.weight.zero_()
    with pytest.raises(UserError, match="5 of 5 vectors are zero or not finite, first for image 0"):
        encoder.embed_images(torch.zeros(7, 3, 32, 32, dtype=torch.uint8))


def test_refuses_fp16_on_a_cpu_and_to_embed_nothing(encoder):
    with pytest.raises(UserError, match="`precision` fp16 needs a GPU"):
        DualEncoder(encoder.model, encoder.preprocessor, device="cpu", precision="fp16")
    with pytest.raises(UserError, match="nothing to embed"):
        encoder.embed_texts([])
