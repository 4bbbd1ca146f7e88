"""Preprocess images and captions for a dual encoder, without the encoder.

Pixels are uint8 at the encoder's size. Normalizing them gives exactly the values of the model's own processor.
"""

from __future__ import annotations

import json
import logging
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
import transformers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoProcessor,
    CLIPImageProcessorPil,
    PreTrainedConfig,
    ProcessorMixin,
    SiglipImageProcessorPil,
)
from transformers.image_transforms import get_resize_output_image_size, resize  # seen with transformers 5.23

from repair_hf.encoder.models import check_tokenizer, explained, homes
from repair_hf.pairs.images import UNDECODABLE, in_8_bits
from repair_hf.runtime.options import UserError
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.run_folder import digest

logger = logging.getLogger(__name__)

# Their text towers read the last position, and were trained on captions in lower case, padded at the end to the full
# length, without a mask. The tokenizer of SigLIP 2 on the Hub keeps the case.
PADDED_TO_FULL_LENGTH = ("siglip", "siglip2")
RIGHT = "right"
CAUSAL = ("clip",)  # text towers that read the end token and never attend to what follows it
# What these classes do before they crop is known, and `_resized` does it faster. Seen with transformers 5.23.
RESIZED_BY_PILLOW = (CLIPImageProcessorPil, SiglipImageProcessorPil)
DECODED_AT_ONCE = 8  # by each thread: a photograph takes 40 MB before it is resized
TOKENIZED_AT_ONCE = 4096
THREADS = min(os.cpu_count() or 1, 8)


class Preprocessor:
    """Turns images and captions into a dual encoder's inputs. It can be pickled for data loader workers.

    Args:
        processor: The model's own processor.
        config: The model's configuration, for the length and the padding of captions.

    Raises:
        UserError: If the image processor does not resize all images to one size.
    """

    def __init__(self, processor: ProcessorMixin, config: PreTrainedConfig) -> None:
        self.processor = processor
        self.max_length = min(processor.tokenizer.model_max_length, config.text_config.max_position_embeddings)
        self.pads_fully = config.model_type in PADDED_TO_FULL_LENGTH
        self.is_causal = config.model_type in CAUSAL
        self.image_shape = self._image_shape()  # (3, H, W)
        self._values = self._value_of_each_byte()  # (3, 256)

    @classmethod
    def from_pretrained(cls, id_or_folder: str | Path, revision: str | None = None) -> Preprocessor:
        """Load the processor of a model from the Hub or from a folder.

        Raises:
            UserError: If a part of it is missing or damaged, or the tokenizer is not the model's.
        """
        (home, own), (base, revision) = homes(id_or_folder, revision)
        with explained(home, "the processor of a dual encoder"):
            processor = AutoProcessor.from_pretrained(home, revision=own)
            # Never torchvision's: results must not depend on whether it is installed.
            processor.image_processor = AutoImageProcessor.from_pretrained(home, revision=own, backend="pil")
            config = AutoConfig.from_pretrained(base, revision=revision)
            check_tokenizer(home, processor.tokenizer, config.text_config.vocab_size)
            return cls(processor, config)

    def save_pretrained(self, folder: str | Path) -> None:
        """Save the processor; `AutoProcessor` and `from_pretrained` load it if the model's config lies beside it."""
        self.processor.save_pretrained(folder)

    @property
    def image_digest(self) -> str:
        """A digest of everything that affects pixels."""
        return digest(image_settings(self.processor.image_processor))

    @property
    def digest(self) -> str:
        """A digest of everything that affects pixels and token ids."""
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
            Returns (n, 3, H, W) uint8.
        """
        resized = [self._resized(in_8_bits(image)) for image in images]
        return torch.from_numpy(self._process(resized, do_rescale=False, do_normalize=False))

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return the `pixel_values` of the model's own processor for the result of `images`, bit for bit.

        Shape:
            pixels: (n, 3, H, W) uint8, on any device. Returns (n, 3, H, W) float32 on the same.
        """
        values = self._values.to(pixels.device, non_blocking=True)  # (3, 256)
        found = torch.empty(pixels.shape, device=pixels.device)
        for channel, table in enumerate(values):  # one table per channel is twice as fast as one for all
            some = pixels[:, channel]
            found[:, channel] = table.index_select(0, some.int().flatten()).view(some.shape)
        return found

    def token_ids(self, captions: Sequence[str]) -> list[list[int]]:
        """Tokenize captions, truncated to the model's maximal length. SigLIP's are padded to it, as in training."""
        how: dict[str, Any] = {"padding": "max_length" if self.pads_fully else False, "max_length": self.max_length}
        how |= {"padding_side": RIGHT} if self.pads_fully else {}
        texts = self.as_trained(captions)
        found = self.processor.tokenizer(texts, truncation=True, return_attention_mask=False, **how)
        return found["input_ids"]

    def batches(self, images: Any, size: int, share: slice) -> Iterator[Tensor]:
        """Yield a share of images in order, `size` at a time, as (n, 3, H, W) uint8; decode in advance.

        `images` is a list of images, a column of a dataset, a `PixelStore`, or a uint8 tensor.
        """

        def resized(part: tuple[int, int]) -> Tensor:
            some = read_images(images, *part)
            return some if isinstance(some, Tensor) else self.images(some)

        def load(cut: tuple[int, int]) -> Tensor:
            return torch.cat([resized(part) for part in cuts_of(*cut, DECODED_AT_ONCE)])

        yield from ahead(load, cuts_of(share.start, share.stop, size))

    def _resized(self, image: PIL.Image.Image) -> PIL.Image.Image:
        """Resize as the processor would, which copies the whole image to an array and back; it then finds it done."""
        processor = self.processor.image_processor
        size = dict(processor.size or {})
        sides = [size[name] for name in ("height", "width", "shortest_edge") if name in size]
        is_known = type(processor) in RESIZED_BY_PILLOW and processor.do_resize and len(sides) == len(size)
        if not (is_known and image.mode == "RGB"):
            return image
        how: Any = {"input_data_format": "channels_last"}
        shape = np.broadcast_to(np.uint8(0), (image.height, image.width, 3))  # all that the function reads
        target = get_resize_output_image_size(shape, sides, default_to_square=False, **how)
        return resize(image, target, processor.resample, return_numpy=False, **how)  # type: ignore[arg-type,return-value]

    def _process(self, images: Sequence[PIL.Image.Image], **kwargs: Any) -> np.ndarray:
        pixels = self.processor.image_processor(list(images), do_convert_rgb=True, **kwargs)["pixel_values"]
        return np.stack(pixels)

    def _image_shape(self) -> tuple[int, ...]:
        shapes = {self._process([PIL.Image.new("RGB", size)]).shape[1:] for size in ((80, 60), (50, 90))}
        if len(shapes) > 1 or len(next(iter(shapes))) != 3:
            name = type(self.processor.image_processor).__name__
            raise UserError(
                f"{name} gives images of the shapes {sorted(shapes)}; one shape (3, H, W) for all images is needed. "
                "Give a model of fixed resolution: for SigLIP 2 NaFlex, such as google/siglip2-base-patch16-224."
            )
        return shapes.pop()

    def _value_of_each_byte(self) -> Tensor:
        """Return the processor's value for each of the 256 values in each channel, (3, 256)."""
        ramp = PIL.Image.fromarray(np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2))
        values = self._process([ramp], do_resize=False, do_center_crop=False, do_pad=False)  # (1, 3, 1, 256)
        return torch.from_numpy(values.astype(np.float32)[0, :, 0])


def image_settings(image_processor: Any) -> list[Any]:
    """Return everything that affects the pixels that an image processor makes."""
    settings = json.loads(image_processor.to_json_string())
    kind = type(image_processor).__name__  # the settings do not contain the backend
    return [transformers.__version__, PIL.__version__, kind, settings]


def tokenizer_settings(tokenizer: Any) -> Any:
    """Return everything that affects the token ids of a tokenizer without padding and truncation."""
    if not tokenizer.is_fast:
        return [type(tokenizer).__name__, tokenizer.get_vocab()]
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    of_the_last_call = ("padding", "truncation")
    return {part: state[part] for part in state if part not in of_the_last_call}


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


def report_captions(tokenizer: Any, max_length: int, captions: Sequence[str]) -> int:
    """Count the captions that are truncated, and log a warning if there are any."""
    room = max_length - tokenizer.num_special_tokens_to_add()
    # a token takes a character, and a space may be added in front, so shorter captions need no tokens to fit
    doubtful = [caption for caption in captions[:] if len(caption) >= room or not caption.isascii()]
    n_cut = 0
    for start in range(0, len(doubtful), TOKENIZED_AT_ONCE):
        some = doubtful[start : start + TOKENIZED_AT_ONCE]
        n_cut += sum(len(ids) > room for ids in tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"])
    if n_cut:
        cut = f"{n_cut:,} of {len(captions):,} captions were truncated"
        logger.warning("%s to %d tokens, the most that the model reads.", cut, max_length)
    return n_cut


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
