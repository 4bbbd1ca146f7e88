"""What the benchmarks share: random vectors, models with random weights, timing, and a table."""

from __future__ import annotations

import argparse
import gc
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from math import nan
from statistics import mean
from typing import Any

import numpy as np
import psutil

SMALL, PAPER = (5000, 25_000), (29_000, 145_000)  # images and captions: COCO's test split, the paper's training data
ARCHITECTURES = ("world", "vit-b-32", "vit-l-14")
NOISE = 3.0  # norm of a caption's noise beside its image's vector: their cosine is about 0.32


GPU_HEADS = ("GPU", "GPU memory")  # of the columns of `GpuUse.cells`
GPU_NOTE = "GPU: mean utilisation as NVML reports it; GPU memory: peak that torch allocated"


@dataclass
class GpuUse:
    """Peak bytes that torch allocated on a GPU, and its utilisation in percent, sampled 50 times a second."""

    memory: int = 0
    samples: list[int] = field(default_factory=list)

    def cells(self) -> tuple[str, str]:
        """Return utilisation and memory for a table; dashes where there was no GPU."""
        shown = f"{mean(self.samples):.0f}%" if self.samples else "-"
        return shown, f"{self.memory / 2**20:,.0f} MiB" if self.memory else "-"


@dataclass(frozen=True)
class Timing:
    """Seconds by the clock, seconds of processor time, the bytes that the process grew by, and the use of the GPU."""

    seconds: float
    busy: float
    memory: int
    gpu: GpuUse


@dataclass(frozen=True)
class Vectors:
    """Unit vectors of images (N, D) and captions (M, D), and the index of each caption's image (M,)."""

    images: np.ndarray
    texts: np.ndarray
    image_of: np.ndarray

    @classmethod
    def random(cls, images: int, texts: int, dim: int) -> Vectors:
        """Draw vectors in which most captions are nearest to their image, as a good retriever's are."""
        rng = np.random.default_rng(0)
        image_of = np.arange(texts) % images
        of_images = _unit(rng.standard_normal((images, dim), np.float32))
        of_texts = rng.standard_normal((texts, dim), np.float32)
        of_texts *= NOISE / np.sqrt(dim)
        of_texts += of_images[image_of]
        return cls(of_images, _unit(of_texts), image_of)


def parser(description: str, rows: Iterable[str] = ()) -> argparse.ArgumentParser:
    """Return a parser with `--repeat`, and `--rows` if a benchmark has several rows."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--repeat", type=int, default=3, help="rounds; each round measures every row once")
    if rows:
        made.add_argument("--rows", nargs="+", choices=list(rows), default=list(rows), help="rows to measure")
    return made


def measure(work: Callable[..., object], *arguments: object, device: str = "cpu") -> Timing:
    """Call `work` once, sampling the process's memory 100 times a second."""
    gc.collect()
    process = psutil.Process()
    before = peak = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        peak = max(peak, process.memory_info().rss)

    with _repeated(watch, 0.01), gpu_watched(device) as gpu:
        start, began = time.perf_counter(), time.process_time()
        work(*arguments)
        seconds, busy = time.perf_counter() - start, time.process_time() - began
    return Timing(seconds, busy, peak - before, gpu)


@contextmanager
def gpu_watched(device: str) -> Iterator[GpuUse]:
    """Watch the GPU. What is yielded is complete when the context ends; it stays empty for the device `cpu`.

    Utilisation needs the package nvidia-ml-py; without it, only memory is measured.
    """
    use = GpuUse()
    if device == "cpu":
        yield use
        return
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    try:
        torch.cuda.utilization()
    except ModuleNotFoundError:
        watcher: Any = nullcontext()
    else:
        watcher = _repeated(lambda: use.samples.append(torch.cuda.utilization()), 0.02)
    with watcher:
        yield use
        torch.cuda.synchronize()
    use.memory = torch.cuda.max_memory_allocated()


@contextmanager
def _repeated(watch: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `watch` in a thread, each so many seconds."""
    is_done = threading.Event()

    def work() -> None:
        while not is_done.wait(seconds):
            watch()

    watcher = threading.Thread(target=work)
    watcher.start()
    try:
        yield
    finally:
        is_done.set()
        watcher.join()


def ratio(part: float, whole: float) -> float:
    """Divide two times. There is no ratio to a time in which the processor's clock did not tick."""
    return part / whole if whole else nan


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print right-aligned columns; the first one, the row's name, is left-aligned."""
    lines = [list(heads), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        print(
            name.ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)),
            sep="  ",
        )


def print_notes(notes: dict[str, str], rows: Iterable[str], *more: str) -> None:
    """Print what each row measures, then what the columns mean."""
    print(*(f"{row}: {notes[row]}" for row in rows), *more, sep="\n")


def random_weights(architecture: str, captions: Iterable[str]) -> tuple[Any, Any]:
    """Build a CLIP model of a known size with random weights: speed does not depend on what a model has learnt.

    Args:
        architecture: One of `ARCHITECTURES`. All have a small vocabulary, learnt from `captions`.
        captions: Any captions.

    Returns:
        The model and its preprocessor.
    """
    import torch
    from pretrain import build_model, build_processor
    from transformers import CLIPModel

    from repair_hf.encoder.preprocessing import Preprocessor

    processor = build_processor(captions)
    torch.manual_seed(0)
    if architecture == "world":
        model = build_model(processor)
        return model, Preprocessor(processor, model.config)
    model = CLIPModel(_config(architecture, processor.tokenizer))
    side = model.config.vision_config.image_size
    processor.image_processor.size = {"shortest_edge": side}
    processor.image_processor.crop_size = {"height": side, "width": side}
    processor.tokenizer.model_max_length = model.config.text_config.max_position_embeddings
    return model, Preprocessor(processor, model.config)


class Noise:
    """A table of pictures that repeats after 256; at module level, so that it reaches the workers of a loader."""

    def __init__(self, n: int, preprocessor: Any) -> None:
        import torch

        self.n, self.pixels = n, torch.randint(256, (min(n, 256), *preprocessor.image_shape), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, rows: np.ndarray) -> Any:
        return self.pixels[np.asarray(rows) % len(self.pixels)]


def _config(architecture: str, tokenizer: Any) -> Any:
    from transformers import CLIPConfig

    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    if architecture == "vit-b-32":
        return CLIPConfig(text_config=ids)
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "projection_dim": 768}
    return CLIPConfig(
        text_config=text | ids, vision_config=vision | {"patch_size": 14, "projection_dim": 768}, projection_dim=768
    )


def _unit(vectors: np.ndarray) -> np.ndarray:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors
