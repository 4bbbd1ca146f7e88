"""Embedding beside a plain loop of `transformers`: images and captions per second.

In:  an architecture (random weights), how many images and captions, the size of a batch.
Out: for each way its speed and how far its vectors are from the loop's, round by round.

Pictures are photographs' stand-ins, JPEG files of smooth noise; captions those of the toy world, as long as COCO's. All ways run in this
process and take turns.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from datasets import Dataset, Features, Image

from repair_hf.architectures import Architecture, random_weights
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.toyworld import captions, scenes

ROWS = {
    "loop": "the model's processor and get_..._features, batch by batch, captions padded to the model's longest",
    "ours": "images decoded ahead by threads, distinct captions by length",
    "cached": "the same, images from a memory-mapped file of pixels",
    "bf16": "the same as ours in mixed precision; faster where the processor or GPU multiplies bfloat16 by itself",
}
REFERENCE = "loop"
SIZE = (500, 375)


@dataclass(frozen=True)
class Load:
    """What is embedded."""

    architecture: Architecture
    images: int
    texts: int
    batch: int
    device: str


@dataclass(frozen=True)
class Found:
    """What one way did: images and captions per second, and the largest difference from the loop's vectors."""

    images: float
    texts: float
    apart: float

    def better(self, other: Found) -> Found:
        """The faster of two, for images and captions each."""
        return Found(max(self.images, other.images), max(self.texts, other.texts), max(self.apart, other.apart))


def measure(load: Load, rows: list[str], rounds: int) -> Iterator[dict[str, Found]]:
    """Round by round, what each way did."""
    rng = random.Random(0)
    texts = [captions.write(scenes.sample(rng), rng) for _ in range(load.texts)]
    model, preprocessor = random_weights(load.architecture, texts)
    files = Dataset.from_dict({"image": _photographs(load.images)}, features=Features({"image": Image()}))
    encoders = {
        name: DualEncoder(model.eval(), preprocessor, device=load.device, batch_size=load.batch, precision=name)
        for name in ("fp32", "bf16")
    }
    with tempfile.TemporaryDirectory() as folder:
        store = PixelStore(files, "image", preprocessor, Path(folder)) if "cached" in rows else None
        tables = {"ours": files["image"], "cached": store, "bf16": files["image"]}
        for _ in range(rounds):
            found = {}
            for row in rows:
                encoder = encoders["bf16" if row == "bf16" else "fp32"]
                images, seconds = _timed(
                    _loop_of_images if row == REFERENCE else _images, encoder, tables.get(row, files)
                )
                vectors, more = _timed(_loop_of_texts if row == REFERENCE else _texts, encoder, texts)
                whole = np.concatenate([images, vectors])
                if row == REFERENCE:  # the first
                    reference = whole
                apart = float(np.abs(whole - reference).max())
                found[row] = Found(load.images / seconds, load.texts / more, apart)
            yield found


def _timed(work: Callable[..., np.ndarray], *arguments: object) -> tuple[np.ndarray, float]:
    start = time.perf_counter()
    made = work(*arguments)
    return made, time.perf_counter() - start


def _images(encoder: DualEncoder, images: object) -> np.ndarray:
    return encoder.embed_images(images)


def _texts(encoder: DualEncoder, texts: list[str]) -> np.ndarray:
    return encoder.embed_texts(texts)


def _loop_of_images(encoder: DualEncoder, files: Dataset) -> np.ndarray:
    process, found = encoder.preprocessor.processor.image_processor, []
    for start in range(0, len(files), encoder.batch_size):
        inputs = process(files[start : start + encoder.batch_size]["image"], return_tensors="pt").to(encoder.device)
        with torch.no_grad():
            found.append(encoder.model.get_image_features(**inputs).pooler_output)
    return torch.nn.functional.normalize(torch.cat(found)).cpu().numpy()


def _loop_of_texts(encoder: DualEncoder, texts: list[str]) -> np.ndarray:
    tokenizer, found = encoder.preprocessor.processor.tokenizer, []
    padded = {"padding": "max_length", "max_length": encoder.preprocessor.max_length, "truncation": True}
    for start in range(0, len(texts), encoder.batch_size):
        some = texts[start : start + encoder.batch_size]
        inputs = tokenizer(some, return_tensors="pt", **padded).to(encoder.device)
        with torch.no_grad():
            found.append(encoder.model.get_text_features(**inputs).pooler_output)
    return torch.nn.functional.normalize(torch.cat(found)).cpu().numpy()


def _photographs(n: int) -> list[dict[str, bytes | None]]:
    """JPEG files; after some dozens they repeat themselves, which nobody who decodes them can use."""
    rng, files = np.random.default_rng(0), []
    for _ in range(min(n, 64)):
        small = PIL.Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(SIZE, PIL.Image.BICUBIC)
        grain = rng.normal(0, 6, (*SIZE[::-1], 3))
        file = io.BytesIO()
        PIL.Image.fromarray((np.asarray(small) + grain).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append({"bytes": file.getvalue(), "path": None})
    return [files[row % len(files)] for row in range(n)]
