"""open_clip loads what `examples/export_open_clip.py` writes, with the same pixels, tokens and embeddings.

CLIP_benchmark's own command prints the numbers of `repair-hf evaluate` for that folder.
"""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from examples.export_open_clip import export
from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation import benchmarks
from repair_hf.evaluation.benchmark_metrics import SUGARCREPE
from repair_hf.evaluation.judging import compositional_metrics, evaluate_compositional
from repair_hf.toyworld import captions, scenes
from repair_hf.toyworld.renderer import render

REASON = "CLIP_benchmark and open_clip want torchvision: `make crosscheck` runs this in an environment of their own"
open_clip = pytest.importorskip("open_clip", reason=REASON)
SIZES = [(64, 64), (41, 29), (90, 61), (33, 200), (500, 375), (64, 65), (16, 16)]  # width, height

PICTURES = 150  # of the toy world


def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    noise = (Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)) for _ in SIZES)
    return [picture.resize(size, Image.BICUBIC) for picture, size in zip(noise, SIZES, strict=True)]


def sentences() -> list[str]:
    rng = random.Random(0)
    return [*(captions.write(scenes.sample(rng), rng) for _ in range(12)), "a " * 100]


def exported(encoder: DualEncoder, folder: Path):
    export(encoder, folder)
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    return model.eval(), preprocess, open_clip.get_tokenizer(f"local-dir:{folder}")


def assert_same_vectors(encoder: DualEncoder, model, tokenize, photos: list, texts: list[str], atol: float) -> None:
    pixels = encoder.preprocessor.images(photos)
    with torch.no_grad():
        images = model.encode_image(encoder.preprocessor.normalize(pixels), normalize=True).numpy()
        written = model.encode_text(tokenize(texts), normalize=True).numpy()
    np.testing.assert_allclose(images, encoder.embed_images(pixels), atol=atol)
    np.testing.assert_allclose(written, encoder.embed_texts(texts), atol=atol)


@pytest.fixture(params=["gelu", "quick_gelu"])
def encoder(request, clip_folder) -> DualEncoder:
    return DualEncoder.from_pretrained("world/base" if request.param == "gelu" else clip_folder, device="cpu")


def test_the_same_vectors(encoder, tmp_path):
    model, _, tokenize = exported(encoder, tmp_path)
    assert_same_vectors(encoder, model, tokenize, pictures(), sentences(), 2e-6)
    assert model.logit_scale.item() == encoder.model.logit_scale.item()


def test_the_same_pixels_but_for_the_side_of_an_odd_pixel(encoder, tmp_path):
    """open_clip rounds half of an odd surplus to even; we round it down, as the model's own processor does."""
    _, preprocess, _ = exported(encoder, tmp_path)
    side = encoder.preprocessor.image_shape[-1]
    shifted = 0
    for picture in pictures():
        ours = encoder.preprocessor.normalize(encoder.preprocessor.images([picture]))[0]
        short, long = sorted(picture.size)
        before = (int(long * side / short) - side) / 2
        if round(before) == int(before):
            torch.testing.assert_close(preprocess(picture), ours, atol=1e-5, rtol=0)
        else:
            shifted += 1
            axis = 2 if picture.width > picture.height else 1
            theirs = preprocess(picture).narrow(axis, 0, side - 1)
            torch.testing.assert_close(theirs, ours.narrow(axis, 1, side - 1), atol=1e-5, rtol=0)
    assert shifted  # or this says nothing of them


@pytest.fixture(scope="module")
def toy_world(tmp_path_factory) -> Path:
    """Drawn pictures as JPEG with two captions each, in the forms of both tools; and cases as SugarCrepe has them."""
    folder, rng = tmp_path_factory.mktemp("toy"), random.Random(1)
    (folder / "val2017").mkdir()
    ours, theirs, cases = [], ["image,caption"], {}
    for number in range(PICTURES):
        scene, name = scenes.sample(rng), f"{number:03d}.jpg"
        render(scene).convert("RGB").save(folder / "val2017" / name, quality=95)
        written = [captions.write(scene, rng) for _ in range(2)]
        ours.append(json.dumps({"image": name, "captions": written}))
        theirs += [f"{name},{caption}" for caption in written]
        negative = captions.write(scenes.sample(rng), rng)
        cases[str(number)] = {"filename": name, "caption": written[0], "negative_caption": negative}
    cases["3"]["negative_caption"] = cases["3"]["caption"]  # a tie
    (folder / "val2017" / "captions.jsonl").write_text("\n".join(ours) + "\n")
    (folder / "captions.txt").write_text("\n".join(theirs) + "\n")
    for category in SUGARCREPE:
        (folder / f"{category}.json").write_text(json.dumps(cases))
    return folder


def clip_benchmark(*words: str) -> dict[str, float]:
    output = Path(words[words.index("--output") + 1])
    command = [sys.executable, "-m", "clip_benchmark.cli", "eval", *words, "--pretrained", "", "--no_amp"]
    command += ["--num_workers", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(output.read_text())["metrics"]


def test_clip_benchmarks_command_prints_our_numbers(toy_world, tmp_path, monkeypatch):
    pytest.importorskip("clip_benchmark", reason=REASON)
    export(DualEncoder.from_pretrained("world/base", device="cpu"), tmp_path / "base")
    photos = toy_world / "val2017"
    words = f"--pairs {photos} --split all --resamples 10 --output {tmp_path}/ours"
    assert main(["evaluate", "world/base", *words.split()]) == 0
    ours = json.loads((tmp_path / "ours" / "metrics.json").read_text())
    shared = ["--model", f"local-dir:{tmp_path}/base", "--output", f"{tmp_path}/theirs.json"]
    words = f"--dataset flickr30k --dataset_root {photos} --task zeroshot_retrieval --recall_k 1 5 10"
    theirs = clip_benchmark(*shared, *words.split(), "--annotation_file", str(toy_world / "captions.txt"))
    for k in (1, 5, 10):
        assert ours[f"t2i_R@{k}"] == pytest.approx(theirs[f"image_retrieval_recall@{k}"], abs=1e-6)
        assert ours[f"i2t_R@{k}"] == pytest.approx(theirs[f"text_retrieval_recall@{k}"], abs=1e-6)
    assert 0.5 < ours["t2i_R@1"] < 0.99  # or equality says little

    words = f"--dataset sugar_crepe/swap_obj --dataset_root {toy_world} --task image_caption_selection"
    theirs = clip_benchmark(*shared, *words.split())
    whole = replace(benchmarks.BENCHMARKS["sugarcrepe"], published=PICTURES * len(SUGARCREPE))
    monkeypatch.setitem(benchmarks.BENCHMARKS, "sugarcrepe", whole)
    cases = benchmarks.load_benchmark("sugarcrepe", str(toy_world))
    encoder = DualEncoder.from_pretrained("world/base", device="cpu")
    found = compositional_metrics(evaluate_compositional(encoder, [cases], "base"), [cases])
    ours_with_tie = found["sugarcrepe_swap_obj"] + 1 / PICTURES  # they count the tie as right
    assert ours_with_tie == pytest.approx(theirs["text_acc"], abs=1e-6)
