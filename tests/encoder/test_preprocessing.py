"""Pixels and token ids equal those of the model's own processor; a `PixelStore` notices changed images."""

import pickle
import shutil
from copy import deepcopy

import numpy as np
import PIL.Image
import PIL.JpegImagePlugin
import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig, AutoProcessor, EfficientNetImageProcessorPil, Siglip2ImageProcessorPil

from repair_hf.encoder import token_store
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import DecodedImages, PixelStore
from repair_hf.encoder.preprocessing import Preprocessor
from repair_hf.encoder.token_store import TokenStore
from repair_hf.encoder.tokenizers import report_captions
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError

CAPTIONS = ["a red circle on grey paper", "circle", "a blue square"]
EDITS = ["one", "a yellow triangle on grey paper again and again", "circle " * 40]
MODES = ("RGB", "L", "LA", "RGBA", "P", "CMYK", "1", "palette with transparency")
SIZES = ((41, 29), (32, 32), (7, 90), (1, 1), (200, 33))


@pytest.fixture
def preprocessor(clip_folder) -> Preprocessor:
    return Preprocessor.from_pretrained(clip_folder)


def picture(mode: str, size: tuple[int, int] = (41, 29)) -> PIL.Image.Image:
    noise = np.random.default_rng(len(mode)).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    if mode == "palette with transparency":
        image = PIL.Image.fromarray(noise[..., :3]).quantize(16)
        image.info["transparency"] = 3
        return image
    return PIL.Image.fromarray(noise, "RGBA").convert(mode)


def test_pixel_values_are_those_of_the_processor(folder):
    preprocessor = Preprocessor.from_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder).image_processor
    for mode in MODES:
        for size in SIZES:
            pixels = preprocessor.images([picture(mode, size)])
            assert (pixels.dtype, pixels.shape) == (torch.uint8, (1, 3, 32, 32))
            own = processor(picture(mode, size), return_tensors="pt")["pixel_values"]
            assert preprocessor.normalize(pixels).equal(own), (mode, size)


def test_greys_of_16_bits_are_those_of_8(preprocessor):
    grey = picture("L")
    deep = PIL.Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    assert preprocessor.images([deep]).equal(preprocessor.images([grey]))


@pytest.mark.parametrize("kind", ["no normalization", "EfficientNet", "EfficientNet without top"])
def test_pixel_values_of_other_processors_are_their_own(kind, clip_folder, tmp_path):
    """EfficientNet, of ALIGN, shifts the values; with its top it normalizes them twice, so a byte has no one value."""
    processor = AutoProcessor.from_pretrained(clip_folder)
    if kind == "no normalization":
        processor.image_processor.do_normalize = False
    else:
        size = {"height": 32, "width": 32}
        processor.image_processor = EfficientNetImageProcessorPil(size=size, include_top="without" not in kind)
    images = [picture("RGB", (40, 40)), picture("L"), picture("RGBA", (90, 31)), picture("RGB", (400, 300))]
    own = processor.image_processor(images, do_convert_rgb=True, return_tensors="pt")["pixel_values"]
    preprocessor = Preprocessor(processor, AutoConfig.from_pretrained(clip_folder))
    assert preprocessor.normalize(preprocessor.images(images)).equal(own)
    store = PixelStore(Dataset.from_dict({"image": images}), "image", preprocessor, tmp_path)
    assert preprocessor.normalize(store[:]).equal(own)


def test_cuts_captions_at_the_models_longest_and_counts_them(folder, caplog):
    """Also where the tokenizer itself knows no limit."""
    preprocessor = Preprocessor.from_pretrained(folder)
    tokenizer, longest = preprocessor.processor.tokenizer, preprocessor.max_length
    assert longest == {"clip": 32, "siglip": 12}[AutoConfig.from_pretrained(folder).model_type]
    tokenizer.model_max_length = int(1e30)
    captions = [" ".join(["circle"] * n) for n in range(1, 60)] + ["circle" * 40, "é" * 12]
    marks = [mark * n for mark in ("!", " q", "é") for n in range(longest - 4, longest + 2)]  # a token each
    wanted = sum(len(tokenizer(caption)["input_ids"]) > longest for caption in captions)
    assert 20 < report_captions(tokenizer, longest, captions) == wanted < 60
    cut = sum(len(tokenizer(mark)["input_ids"]) > longest for mark in marks)
    assert report_captions(tokenizer, longest, marks) == cut > 1
    assert f"{wanted} of 61 captions were truncated to {longest} tokens, the most that the model" in caplog.text
    caplog.clear()
    assert report_captions(tokenizer, longest, ["a red circle"] * 3) == 0 and not caplog.text
    ids = preprocessor.token_ids(captions)
    assert max(map(len, ids)) == longest and ids[58][-1] == tokenizer.eos_token_id
    assert ids[58] == tokenizer(captions[58], truncation=True, max_length=longest)["input_ids"]


def test_reads_the_positions_of_the_model_where_the_tokenizer_says_fewer(clip_folder):
    """As Long-CLIP, which reads 248 tokens with a tokenizer of 77."""
    processor = AutoProcessor.from_pretrained(clip_folder)
    processor.tokenizer.model_max_length = 20
    assert Preprocessor(processor, AutoConfig.from_pretrained(clip_folder)).max_length == 32


def test_survives_saving_and_pickling(folder, tmp_path):
    preprocessor = Preprocessor.from_pretrained(folder)
    before = preprocessor.digest
    preprocessor.token_ids(["a", "a red circle"])  # leaves its traces in the tokenizer
    assert preprocessor.digest == before
    preprocessor.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    for copy in (Preprocessor.from_pretrained(tmp_path), pickle.loads(pickle.dumps(preprocessor))):
        assert copy.digest == preprocessor.digest
        assert copy.token_ids(["a red circle"]) == preprocessor.token_ids(["a red circle"])
        assert copy.images([picture("RGB")]).equal(preprocessor.images([picture("RGB")]))


def test_other_settings_have_another_digest(clip_folder, siglip_folder):
    one, other = Preprocessor.from_pretrained(clip_folder), Preprocessor.from_pretrained(clip_folder)
    other.processor.image_processor.image_mean = [0.5, 0.5, 0.5]
    assert one.image_digest != other.image_digest
    other = Preprocessor.from_pretrained(clip_folder)
    other.processor.tokenizer.add_tokens("zebra")
    assert (one.image_digest, one.digest) != (other.image_digest, other.digest)
    assert one.image_digest == other.image_digest
    assert one.digest != (siglip := Preprocessor.from_pretrained(siglip_folder)).digest
    before = siglip.digest
    siglip.processor.tokenizer.pad_token = "<unk>"  # SigLIP reads the last position
    assert siglip.digest != before


def test_refuses_a_processor_without_one_size(clip_folder):
    """SigLIP 2 NaFlex gives each image its own number of patches."""
    processor, config = AutoProcessor.from_pretrained(clip_folder), AutoConfig.from_pretrained(clip_folder)
    processor.image_processor.do_center_crop = False
    with pytest.raises(UserError, match="gives images of the shapes"):
        Preprocessor(processor, config)
    processor.image_processor = Siglip2ImageProcessorPil(patch_size=16, max_num_patches=4)
    needs = r"Siglip2ImageProcessor.*; one shape \(3, H, W\) for all images is needed. Give a model of fixed"
    with pytest.raises(UserError, match=needs):
        Preprocessor(processor, config)


def test_store_holds_the_pixels_is_made_once_and_pickles_without_them(preprocessor, pairs_folder, tmp_path):
    images = load_pairs(pairs_folder, split="all").images
    store = PixelStore(images, "image", preprocessor, tmp_path)
    assert len(store) == 12
    rows = np.array([11, 0, 5, 5])
    assert store[rows].equal(preprocessor.images(images[rows.tolist()]["image"]))
    assert store[2:4].equal(preprocessor.images(images[2:4]["image"]))
    assert [path.suffix for path in tmp_path.iterdir()] == [".npy"]  # no draft is left
    made = store.path.stat().st_mtime_ns
    again = PixelStore(images, "image", preprocessor, tmp_path)
    assert (again.path, again.path.stat().st_mtime_ns) == (store.path, made)
    pickled = pickle.dumps(store)
    assert len(pickled) < 1000
    assert pickle.loads(pickled)[:].equal(store[:])


def test_store_is_made_anew_for_other_images_or_settings(preprocessor, tmp_path):
    def store(colour: str) -> PixelStore:
        images = Dataset.from_dict({"edit": [PIL.Image.new("RGB", (40, 40), colour)]})
        return PixelStore(images, "edit", preprocessor, tmp_path)

    red, blue = store("red"), store("blue")
    assert (red[0:1][0, :, 0, 0].tolist(), blue[0:1][0, :, 0, 0].tolist()) == ([255, 0, 0], [0, 0, 255])
    preprocessor.processor.image_processor.size["shortest_edge"] = 64
    assert store("red").path != red.path


def test_store_says_which_images_cannot_be_decoded(preprocessor, pairs_folder, tmp_path):
    pairs = load_pairs(shutil.copytree(pairs_folder, tmp_path / "copy"), split="all")
    (tmp_path / "copy" / "red_circle.png").write_bytes(b"\x89PNG no more")
    with pytest.raises(UserError, match="images 0 to 7 cannot be decoded"):
        PixelStore(pairs.images, "image", preprocessor, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.fixture(params=["clip", "mask", "siglip"])
def preprocess(request, preprocessor, siglip_folder):
    """A causal text tower, one that looks both ways and needs a mask, and one that is padded fully."""
    if request.param == "siglip":
        return DualEncoder.from_pretrained(siglip_folder, device="cpu").preprocessor
    made = deepcopy(preprocessor)
    made.is_causal = request.param == "clip"
    return made


@pytest.mark.parametrize("at_once", [1, 2, 1024])
def test_tokens_are_those_of_the_captions_together(preprocess, at_once, monkeypatch):
    """Padded to the longest of the batch (SigLIP's to the full length), whatever block they were tokenized in."""
    monkeypatch.setattr(token_store, "TOKENIZED_AT_ONCE", at_once)
    seen, ids = [], preprocess.token_ids
    monkeypatch.setattr(preprocess, "token_ids", lambda some: (seen.append(len(some)), ids(some))[1])
    tokens = TokenStore(preprocess, [CAPTIONS, EDITS])
    assert seen == {1: [1] * 6, 2: [2, 1, 2, 1], 1024: [3, 3]}[at_once]
    padding = {"padding": "max_length" if preprocess.pads_fully else "longest", "padding_side": "right"}
    cut = {"truncation": True, "max_length": preprocess.max_length, "return_tensors": "pt"}
    for rows in ([1, 2], [3], [4, 0, 2], [0, 1, 2, 3, 4, 5], [2, 2]):
        expected = preprocess.processor.tokenizer([[*CAPTIONS, *EDITS][row] for row in rows], **padding, **cut)
        if preprocess.pads_fully or preprocess.is_causal:
            del expected["attention_mask"]
        found = tokens[np.array(rows)]
        assert found.keys() == expected.keys()
        for name, ids in expected.items():
            torch.testing.assert_close(found[name], ids, check_dtype=False)


def test_images_decoded_on_demand_are_the_preprocessors(pairs_folder, preprocessor):
    pairs = load_pairs(pairs_folder, split="all")
    table = DecodedImages(pairs.images, "image", preprocessor)
    assert len(table) == 12
    expected = preprocessor.images([pairs.images[row]["image"] for row in (1, 7)])
    torch.testing.assert_close(table[np.array([1, 7])], expected)
