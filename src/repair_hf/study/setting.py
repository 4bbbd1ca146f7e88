"""What all cells of a study share.

In:  the options of `repair-hf study`.
Out: `Setting`, which products and cells are handed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from repair_hf.encoder import DualEncoder
from repair_hf.models import EditorOptions, LLMOptions
from repair_hf.options import PairsOptions
from repair_hf.pairs import Pairs, load_wanted
from repair_hf.toyworld.shipped import locate


@dataclass
class Setting:
    """One dataset, one retriever, the same means for every method.

    Args:
        output: Folder of the study.
        pairs_options: The training pairs.
        model: The retriever, before any training.
        llm: The LLM of all methods.
        editor: The image editor of all methods.
        weak_llm: A weaker stand-in, if there is one.
        weak_editor: A weaker stand-in, if there is one.
        other_model: Another retriever, if there is one.
        spacy_model: Parses captions.
        mine: Options of `repair-hf mine` beside the pairs, as words.
        synthesize: Options of `repair-hf synthesize` beside pairs and models, as words.
        training: Options of `RepairConfig` that all methods share.
        type_command: Takes the words of a command, and runs it.
        split: What is measured on.
    """

    output: Path
    pairs_options: PairsOptions
    model: str
    llm: LLMOptions
    editor: EditorOptions
    weak_llm: LLMOptions | None
    weak_editor: EditorOptions | None
    other_model: str | None
    spacy_model: str
    mine: list[str]
    synthesize: list[str]
    training: dict[str, Any]
    type_command: Callable[..., None]
    split: str = "test"

    @cached_property
    def pairs(self) -> Pairs:
        """The training pairs."""
        return load_wanted(self.pairs_options)

    def held_out(self, split: str) -> Pairs:
        """The pairs of a split that is measured on."""
        return load_wanted(self.pairs_options, split)

    def encoder(self, model: str) -> DualEncoder:
        """A retriever as it is before training."""
        return DualEncoder.from_pretrained(locate(model))
