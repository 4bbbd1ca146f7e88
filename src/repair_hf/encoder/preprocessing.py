"""Preprocess images and captions for a dual encoder, without the encoder.

Pixels are uint8 at the encoder's size. Normalizing them gives exactly the values of the model's own processor.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch import Tensor
from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, PreTrainedConfig, ProcessorMixin
from transformers.image_transforms import get_resize_output_image_size, resize  # seen with transformers 5.23

from repair_hf.encoder.models import PROCESSOR, explained, has_file, lineage
from repair_hf.encoder.tokenizers import check_tokenizer, tokenizer_settings
from repair_hf.pairs.images import UNDECODABLE, in_8_bits
from repair_hf.runtime.options import UserError
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.run_folder import digest

# Their text towers read the last position, and were trained on captions in lower case, padded at the end to the full
# length, without a mask. The tokenizer of SigLIP 2 on the Hub keeps the case.
PADDED_TO_FULL_LENGTH = ("siglip", "siglip2")
RIGHT = "right"
CAUSAL = ("clip",)  # text towers that read the end token and never attend to what follows it
PROBES = ((80, 60), (50, 90), (500, 375))  # sizes of the images on which our pixels are compared with the processor's
DECODED_AT_ONCE = 8  # by each thread: a photograph takes 40 MB before it is resized
THREADS = min(os.cpu_count() or 1, 8)


class Preprocessor:
    """Turns images and captions into a dual encoder's inputs. It can be pickled for data loader workers.

    Args:
        processor: The model's own processor.
        config: The model's configuration, for the length and the padding of captions.

    Attributes:
        max_length: Most tokens of a caption.
        image_shape: (3, H, W) of each image.
        pixel_type: uint8; float32 for a processor whose values are not a function of each byte alone.

    Raises:
        UserError: If the image processor does not resize all images to one size, or the tokenizer is not the model's.
    """

    pixel_type: np.dtype[Any]
    _values: Tensor | None  # (3, 256), the value of each byte; None where there is no such

    def __init__(self, processor: ProcessorMixin, config: PreTrainedConfig) -> None:
        self.processor = processor
        self.pads_fully = config.model_type in PADDED_TO_FULL_LENGTH
        self.is_causal = config.model_type in CAUSAL
        positions = config.text_config.max_position_embeddings
        # Long-CLIP reads 248 positions, and its tokenizer says 77. In other towers some positions are reserved.
        self.max_length = positions if self.is_causal else min(processor.tokenizer.model_max_length, positions)
        check_tokenizer(processor.tokenizer, config.text_config.vocab_size)
        self._compare_pixels()

    @classmethod
    def from_pretrained(cls, id_or_folder: str | Path, revision: str | None = None) -> Preprocessor:
        """Load the processor of a model from the Hub or from a folder; of an adapter without one that of its base.

        Raises:
            UserError: If a part of it is missing or damaged, or the tokenizer is not the model's.
        """
        homes = lineage(id_or_folder, revision)
        base, base_revision = homes[-1]
        home, revision = next((home for home in homes if has_file(home[0], PROCESSOR, home[1])), homes[-1])
        with explained(home, "the processor of a dual encoder"):
            processor = AutoProcessor.from_pretrained(home, revision=revision, trust_remote_code=False)
            # Never torchvision's: results must not depend on whether it is installed.
            processor.image_processor = AutoImageProcessor.from_pretrained(
                home, revision=revision, backend="pil", trust_remote_code=False
            )
            config = AutoConfig.from_pretrained(base, revision=base_revision, trust_remote_code=False)
            return cls(processor, config)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the processor; `AutoProcessor` and `from_pretrained` load it if the model's config lies beside it."""
        self.processor.save_pretrained(folder)

    @property
    def image_digest(self) -> str:
        """A digest of all settings that affect pixels."""
        return digest(image_settings(self.processor.image_processor))

    @property
    def digest(self) -> str:
        """A digest of all settings that affect pixels and token ids."""
        tokenizer = self.processor.tokenizer
        padding = [RIGHT, tokenizer.pad_token_id] if self.pads_fully else []  # padding is read
        return digest([self.image_digest, self.max_length, self.pads_fully, tokenizer_settings(tokenizer), *padding])

    def as_trained(self, captions: Sequence[str]) -> list[str]:
        """Return captions in the case in which the model was trained on them, if its tokenizer may keep another."""
        return [caption.lower() for caption in captions] if self.pads_fully else list(captions)

    def images(self, images: Sequence[PIL.Image.Image]) -> Tensor:
        """Resize and crop images of any mode as the model's processor does, without rescaling and normalizing.

        Grey images with more than 8 bits are converted by `in_8_bits`; the processor would turn them white.

        Shape:
            Returns (n, 3, H, W) of `pixel_type`.
        """
        images = [in_8_bits(image) for image in images]
        if self._values is None:
            return torch.from_numpy(self._process(images))
        if self._resizes_ahead:
            images = [self._resized(image) for image in images]
        return torch.from_numpy(self._process(images, do_rescale=False, do_normalize=False))

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return the `pixel_values` of the model's own processor for the result of `images`, bit for bit.

        Shape:
            pixels: (n, 3, H, W), on any device. Returns (n, 3, H, W) float32 on the same.
        """
        if self._values is None:
            return pixels
        values = self._values.to(pixels.device, non_blocking=True)  # (3, 256)
        normalized = torch.empty(pixels.shape, device=pixels.device)
        for channel, table in enumerate(values):  # one table per channel is twice as fast as one for all
            values_of_channel = table.index_select(0, pixels[:, channel].int().flatten())
            normalized[:, channel] = values_of_channel.view(pixels[:, channel].shape)
        return normalized

    def token_ids(self, captions: Sequence[str]) -> list[list[int]]:
        """Tokenize captions, truncated to the model's maximal length. SigLIP's are padded to it, as in training."""
        padding = {"padding": "max_length", "padding_side": RIGHT} if self.pads_fully else {}
        return self.processor.tokenizer(
            self.as_trained(captions),
            truncation=True,
            max_length=self.max_length,
            return_attention_mask=False,
            **padding,
        )["input_ids"]

    def batches(self, images: Any, size: int, share: slice) -> Iterator[Tensor]:
        """Yield a share of images in order, `size` at a time, as (n, 3, H, W); decode in advance.

        `images` is a list of images, a column of a dataset, a `PixelStore`, or a tensor of `pixel_type`.
        """

        def resized(part: tuple[int, int]) -> Tensor:
            decoded = read_images(images, *part)
            return decoded if isinstance(decoded, Tensor) else self.images(decoded)

        def load(batch: tuple[int, int]) -> Tensor:
            return torch.cat([resized(part) for part in cuts_of(*batch, DECODED_AT_ONCE)])

        yield from ahead(load, cuts_of(share.start, share.stop, size))

    def _compare_pixels(self) -> None:
        """Choose the fastest way to pixels whose values are those of the processor's own call, on a few images."""
        noise = np.random.default_rng(0).integers(0, 256, (500, 500, 3), dtype=np.uint8)
        probes = [PIL.Image.fromarray(noise[:height, :width]) for width, height in PROBES]
        expected = [self._process([probe]) for probe in probes]
        shapes = {values.shape[1:] for values in expected}
        if len(shapes) > 1 or expected[0].ndim != 4:
            name = type(self.processor.image_processor).__name__
            raise UserError(
                f"{name} gives images of the shapes {sorted(shapes)}; one shape (3, H, W) for all images is needed. "
                "Give a model of fixed resolution: for SigLIP 2 NaFlex, such as google/siglip2-base-patch16-224."
            )
        (self.image_shape,) = shapes
        self._values = self._value_of_each_byte()
        self.pixel_type = np.dtype(np.uint8)
        for self._resizes_ahead in (True, False):
            pixels = self.images(probes)
            if pixels.dtype == torch.uint8 and np.array_equal(
                self.normalize(pixels).numpy(), np.concatenate(expected)
            ):
                return
        self._values = None
        self.pixel_type = np.dtype(np.float32)

    def _value_of_each_byte(self) -> Tensor:
        """Return the processor's value for each of the 256 values in each channel, (3, 256)."""
        ramp = PIL.Image.fromarray(np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2))
        values = self._process([ramp], do_resize=False, do_center_crop=False, do_pad=False)  # (1, 3, 1, 256)
        return torch.from_numpy(values.astype(np.float32)[0, :, 0])

    def _resized(self, image: PIL.Image.Image) -> PIL.Image.Image:
        """Resize as the processor would, which copies the whole image to an array and back; it then finds it done."""
        processor = self.processor.image_processor
        size = dict(processor.size or {})
        sides = [size[name] for name in ("height", "width", "shortest_edge") if name in size]
        if not (processor.do_resize and len(sides) == len(size) and image.mode == "RGB"):
            return image
        last: Any = "channels_last"
        shape = np.broadcast_to(np.uint8(0), (image.height, image.width, 3))  # all that the function reads
        target = get_resize_output_image_size(shape, sides, default_to_square=False, input_data_format=last)
        resized: Any = resize(image, target, processor.resample, return_numpy=False, input_data_format=last)  # type: ignore[arg-type]
        return resized

    def _process(self, images: Sequence[PIL.Image.Image], **kwargs: Any) -> np.ndarray:
        pixels = self.processor.image_processor(list(images), do_convert_rgb=True, **kwargs)["pixel_values"]
        return np.stack(pixels)


def versions(*libraries: str) -> list[str]:
    """Return the versions of libraries that pixels and vectors depend on, for the names of files that hold these."""
    return [importlib.metadata.version(library) for library in ("transformers", "pillow", *libraries)]


def image_settings(image_processor: Any) -> list[Any]:
    """Return all settings that affect the pixels that an image processor makes."""
    # the settings do not contain the backend
    return [type(image_processor).__name__, json.loads(image_processor.to_json_string())]


def read_images(images: Any, start: int, stop: int) -> Any:
    """Decode some rows of a list or column of images; a `PixelStore` or a tensor gives a tensor.

    Raises:
        UserError: If one cannot be decoded.
    """
    with decoding(f"One of the images {start} to {stop - 1}"):
        return images[start:stop] if isinstance(images, list | tuple) else images[np.arange(start, stop)]


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Raise a `UserError` that says what cannot be decoded, if an image inside is broken."""
    try:
        yield
    except UserError:  # it names the image
        raise
    except UNDECODABLE as error:
        raise UserError(
            f"{what} cannot be decoded ({error}). Its file changed since it was loaded, or the record that holds it "
            "is damaged; load the pairs again, or make the records again."
        ) from error


def progress(share: slice, title: str | None, unit: str) -> Progress:
    """Return the progress bar of a share; without a title it is not shown."""
    return Progress(total=share.stop - share.start, desc=title, unit=unit)


def cuts_of(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Cut a range into pieces of `size`; the last may be smaller."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def ahead(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """`map` with threads that compute a few results in advance."""
    waiting: deque = deque()
    with ThreadPoolExecutor(THREADS) as threads:
        for item in items:
            waiting.append(threads.submit(work, item))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
