"""A small toy world with mined failures, for tests that synthesize records from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, Image
from pyarrow.parquet import read_table

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.llm.asker import Asker
from repair_hf.mining.false_positives import mine_false_positives
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.synthesis.hosted import HostedEditor
from repair_hf.synthesis.images import ImageEditor
from repair_hf.synthesis.options import EditorOptions, LLMOptions, SynthesizeOptions
from repair_hf.synthesis.sources import SourceImages
from repair_hf.synthesis.synthesize import Synthesis
from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.editor import WorldEditor


class World(NamedTuple):
    folder: Path
    pairs: Pairs
    encoder: DualEncoder
    failures: Dataset

    @classmethod
    def build(
        cls,
        folder: Path,
        encoder: DualEncoder,
        images: int,
        *,
        d_i2t: int = 2,
        keep: Callable[[dict], bool] | None = None,
    ) -> World:
        """Build a world with so many images and mine it; `keep` says which failures to keep."""
        pairs = load_pairs(build_world(folder, splits={"train": images, "validation": 1, "test": 1}))
        same = pairs.captions["caption"][:]
        embedded = encoder.embed_pairs(pairs)
        failures = mine_false_positives(*embedded, pairs.caption_image, d_i2t=d_i2t, same_text_is_positive=same)
        return cls(folder, pairs, encoder, failures.filter(keep) if keep else failures)

    def command(self, model: Path) -> list[str]:
        """The words of `repair-hf synthesize`, without LLM, editor and output."""
        failures = self.folder.with_suffix(".parquet")
        self.failures.to_parquet(failures)
        words = ["synthesize", "--pairs", str(self.folder), "--failures", str(failures), "--model", str(model)]
        return [*words, "--check-edits", "0"]

    def with_failures(self, folder: Path, keep: Callable[[dict], bool]) -> World:
        """This world under another path, with the failures that `keep` says."""
        folder.symlink_to(self.folder, target_is_directory=True)
        return self._replace(folder=folder, failures=self.failures.filter(keep))

    def with_broken_images(self, folder: Path, *names: str) -> World:
        """A copy in `folder`, whose images of these names broke after the pairs were loaded."""
        copy = self._replace(pairs=load_pairs(shutil.copytree(self.folder, folder)))
        for name in names:
            (folder / "images" / name).write_bytes(b"no image any more")
        return copy

    def of(self, direction: str, count: int | None = None) -> Dataset:
        """The first failures of a direction."""
        return Dataset.from_list([row for row in self.failures if row["direction"] == direction][:count])

    def repair(
        self,
        asker: Asker,
        folder: Path,
        failures: Dataset | None = None,
        *,
        editor: ImageEditor | HostedEditor | None = None,
        **options,
    ) -> dict[str, Any]:
        """Repair into a folder with these models; return the summary."""
        options = {"check_edits": 0} | options
        chosen = SynthesizeOptions(failures="in memory", model="in memory", **options)
        of_llm, of_editor = LLMOptions(llm=asker.model), EditorOptions(editor="world")
        table = self.failures if failures is None else failures
        synthesis = Synthesis(table, self.pairs, self.encoder, of_llm, of_editor, chosen, output=folder / "unused")
        folder.mkdir(parents=True, exist_ok=True)
        summary, stop = synthesis.repair_into(folder, asker, editor or WorldEditor())
        if stop is not None:
            raise stop
        return summary

    def synthesize(
        self, asker: Asker, folder: Path, failures: Dataset | None = None, **options
    ) -> tuple[list[dict], list[dict]]:
        """Records and dropped failures, as they are read from disk."""
        self.repair(asker, folder, failures, **options)
        return saved(folder)


def sources_of(*paths: Path) -> SourceImages:
    """Image files as the images of pairs."""
    rows = Dataset.from_dict({"image": list(map(str, paths))})
    return SourceImages(rows.cast_column("image", Image()))


def saved(folder: Path) -> tuple[list[dict], list[dict]]:
    """Records and dropped failures of a folder."""
    return read_table(folder / "records").to_pylist(), read_table(folder / "dropped").to_pylist()
