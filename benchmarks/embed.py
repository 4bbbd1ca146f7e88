"""Time embedding beside a plain loop of `transformers`: images and captions per second.

    python benchmarks/embed.py
    python benchmarks/embed.py --architecture vit-b-32 --images 256 --texts 2000

The pictures are JPEG files of noise, the captions the toy world's, as long as COCO's. All rows run in this process and
take turns.
"""

from __future__ import annotations

import importlib.util
import io
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from common import (
    ARCHITECTURES,
    GPU_HEADS,
    GPU_NOTE,
    GpuUse,
    gpu_watched,
    parser,
    print_notes,
    print_table,
    random_weights,
)
from datasets import Dataset, Features, Image

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.toyworld import captions, scenes

NOTES = {
    "loop": "the model's processor and get_..._features, batch by batch, captions padded to the model's maximum",
    "ours": "images decoded ahead by threads, distinct captions sorted by length",
    "cached": "as `ours`, images from a memory-mapped file of pixels",
    "library": "encode of sentence-transformers, where it is installed",
    "bf16": "as `ours` in mixed precision; faster where the hardware multiplies bfloat16",
}
REFERENCE = "loop"
SIZE = (500, 375)


def main() -> None:
    """Print each row's speed, the best of all rounds, and how far its vectors are from the loop's."""
    options = parser("Time embedding.", NOTES)
    options.add_argument("--architecture", choices=ARCHITECTURES, default="world")
    options.add_argument("--images", type=int, default=512)
    options.add_argument("--texts", type=int, default=5000)
    options.add_argument("--batch", type=int, default=256, help="items encoded at once")
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = options.parse_args()
    has_library = importlib.util.find_spec("sentence_transformers") is not None
    wanted = [row for row in args.rows if row != "library" or has_library]
    rows = [row for row in NOTES if row == REFERENCE or row in wanted]
    rng = random.Random(0)
    texts = [captions.write(scenes.sample(rng), rng) for _ in range(args.texts)]
    model, preprocessor = random_weights(args.architecture, texts)
    files = Dataset.from_dict({"image": _photographs(args.images)}, features=Features({"image": Image()}))
    encoders: dict[str, Any] = {
        name: DualEncoder(model.eval(), preprocessor, device=args.device, batch_size=args.batch, precision=name)
        for name in ("fp32", "bf16")
    }
    uses = dict.fromkeys(rows, GpuUse())
    best = {row: [0.0, 0.0, 0.0] for row in rows}  # images/s, captions/s, largest difference from the loop's vectors
    with tempfile.TemporaryDirectory() as folder:
        store = PixelStore(files, "image", preprocessor, Path(folder)) if "cached" in rows else None
        tables = {"ours": files["image"], "cached": store, "bf16": files["image"], "library": files["image"]}
        if "library" in rows:
            encoders["library"] = _Library(encoders["fp32"], folder)
        for row in rows * args.repeat:
            encoder = encoders[row if row in encoders else "fp32"]
            is_loop = row == REFERENCE
            with gpu_watched(args.device) as uses[row]:
                images, seconds = _timed(_loop_of_images if is_loop else _images, encoder, tables.get(row, files))
                vectors, more = _timed(_loop_of_texts if is_loop else _texts, encoder, texts)
            whole = np.concatenate([images, vectors])
            if is_loop:  # the first of a round
                reference = whole
            found = args.images / seconds, args.texts / more, float(np.abs(whole - reference).max())
            best[row] = [max(pair) for pair in zip(best[row], found, strict=True)]
    loop = best[REFERENCE]
    print_table(
        ("", "images/s", "ratio", "captions/s", "ratio", "difference", *GPU_HEADS),
        [
            (row, *_speed(n, loop[0]), *_speed(m, loop[1]), f"{apart:.1e}", *uses[row].cells())
            for row, (n, m, apart) in best.items()
        ],
    )
    print_notes(NOTES, rows, f"{args.architecture}, batches of {args.batch}, {args.images:,} JPEGs of 500 x 375,")
    print(f"{args.texts:,} captions, on {args.device}, best of {args.repeat} rounds; ratio: of the speed")
    print(f"{GPU_NOTE}; both of the last round")


class _Library:
    """The same model in sentence-transformers."""

    def __init__(self, encoder: DualEncoder, folder: str) -> None:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Transformer

        encoder.model.save_pretrained(folder)
        encoder.preprocessor.save_pretrained(folder)
        self.model = SentenceTransformer(modules=[Transformer(folder)], device=str(encoder.device)).eval()
        self.size = encoder.batch_size

    def embed_images(self, items: Any) -> np.ndarray:
        return self.model.encode(list(items), batch_size=self.size, normalize_embeddings=True, show_progress_bar=False)

    embed_texts = embed_images


def _speed(per_second: float, of_loop: float) -> tuple[str, str]:
    return f"{per_second:,.1f}", f"{per_second / of_loop:.2f}"


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
    """Return JPEG files of smooth noise; they repeat after 64."""
    rng, files = np.random.default_rng(0), []
    for _ in range(min(n, 64)):
        small = PIL.Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize(SIZE, PIL.Image.BICUBIC)
        grain = rng.normal(0, 6, (*SIZE[::-1], 3))
        file = io.BytesIO()
        PIL.Image.fromarray((np.asarray(small) + grain).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        files.append({"bytes": file.getvalue(), "path": None})
    return [files[row % len(files)] for row in range(n)]


if __name__ == "__main__":
    main()
