"""The options of the commands that look at a run. Nothing here loads torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from repair_hf.runtime.options import Bounded, UserError, opt


@dataclass
class SourceOptions(Bounded):
    """Where the pairs of a run are now. Their other options are those that the run records."""

    _argument_group_name = "pairs"

    pairs: str | None = opt(
        None, "Images and captions of the run, if they have moved or the run does not name them.", main=True
    )


@dataclass(kw_only=True)
class PriceOptions(Bounded):
    """Whose price a page of mined failures states; nothing is asked or paid."""

    _argument_group_name = "price"

    llm: str = opt("gemini/gemini-3.5-flash-lite", "LLM to price on a page of mined failures.", main=True)
    editor: str = opt("black-forest-labs/FLUX.2-klein-4B", "Image editor to price there.", main=True)


@dataclass(kw_only=True)
class ShowOptions(PriceOptions):
    """Which records to draw."""

    n: int = opt(12, "Records to draw, half of each direction.", least=1)
    direction: Literal["t2i", "i2t"] | None = opt(None, "Direction of the records. Default: both.")
    error_type: str | None = opt(
        None, "Draw only records whose edit instruction names this error type, such as Count."
    )
    dropped: str | None = opt(None, "Draw failures that were dropped for this reason instead, such as gt_invalid.")
    anchor: str | None = opt(None, "Draw the training grid of this caption's id instead; `any` draws `n` of them.")
    output: str | None = opt(None, "Page to write, an .html file. Default: `sheet.html` in the folder shown.")

    def __post_init__(self) -> None:
        super().__post_init__()
        html_file(self.output)


def html_file(output: str | None) -> None:
    """Raise a `UserError` if a page should not be written to an .html file."""
    if output is not None and Path(output).suffix.lower() != ".html":
        raise UserError(f"`output` must be an .html file, got {output!r}.")
