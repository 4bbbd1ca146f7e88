"""Contrast sets: pictures with a caption that is true, and one in which a single detail is changed.

The name and the idea are of Gardner et al. (2020). No retriever chooses the cases, so a set is a fair test of any: one
that guesses is right in half of them. Three steps for each drawn picture:

1. *Contrast*: the LLM changes one detail of a caption.
2. *Edit*, with an image editor: the picture is edited to fit the changed caption.
3. *Audit*: each picture is checked with both captions. Its own must be true of it, and the other one false.

A folder has the columns of Winoground (two pictures, two captions), or without an editor those of SugarCrepe (one
picture). `repair-hf evaluate --contrast` reads it, and `load_dataset(folder, split="test")`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset

from repair_hf.llm.asker import Asker
from repair_hf.llm.cost import StageCost, Usage, paid_in, usage_rows
from repair_hf.llm.ledger import Ledger
from repair_hf.pairs.dataset import MAKE_PAIRS, Pairs
from repair_hf.pairs.folders import load_any
from repair_hf.pairs.problems import Problems
from repair_hf.records.cards import write_card
from repair_hf.records.columns import CONTRAST_FEATURES, KINDS, Kind
from repair_hf.records.triplets import write_rows
from repair_hf.runtime.options import UserError, expect, fill
from repair_hf.runtime.processes import refuse_several
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.run_folder import RunStopped
from repair_hf.runtime.stage import Stage
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.contrast_items import REASONS, Item, ItemMaker, draw_items
from repair_hf.synthesis.estimate import counting, stage_cost
from repair_hf.synthesis.loop import run_to_end, run_to_stop, work_through
from repair_hf.synthesis.models import (
    check_models,
    local_weights,
    open_asker,
    open_editor,
    open_ledger,
    prompts_of,
)
from repair_hf.synthesis.options import ContrastEditorOptions, ContrastOptions, LLMOptions
from repair_hf.synthesis.outcome import can_add, count_unanswered
from repair_hf.synthesis.own import OwnEditor, OwnLLM, id_of
from repair_hf.synthesis.sources import SourceImages

DROPPED = pa.schema([(name, pa.string()) for name in ("image_id", "caption", "changed", "kind", "reason", "detail")])
NEEDS = ("items", "kept", "kinds", "dropped", "unanswered", "attempts", "open", "paid", "seconds")  # of a summary
SAMPLE = 24  # items of an estimate


def contrast_set(
    pairs: Pairs, *, llm: str | OwnLLM, output: str | Path, editor: str | OwnEditor | None = None, **options: Any
) -> Dataset:
    """Make a contrast set in a folder, as `repair-hf contrast` does; the same call resumes.

    Args:
        pairs: Images and captions, of a split that nothing is trained on.
        llm: Id of the LLM, such as `gemini/gemini-3.5-flash-lite`, or a function, as for `synthesize`.
        output: Folder for the set, the ledger and the candidate images.
        editor: Id of the image editor, or a function, as for `synthesize`; None makes one-picture cases.
        options: Other options of `repair-hf contrast`, such as `max_items=500` or `max_usd=5`.

    Returns:
        A row per case: `id`, `kind` (what is changed: Object, Attribute, Action, Count, Relation), `image_id`; and
        `image_0`, `image_1`, `caption_0`, `caption_1`, or without an editor `image`, `caption`, `negative_caption`.

    Raises:
        UserError: If an argument is not valid, or the folder holds something else.
        RunStopped: If a provider or a ceiling stopped the run, or no item made a case. What was finished is in the
            folder.

    Example:
        >>> pairs = load_pairs("runs/world", split="test")
        >>> contrast_set(pairs, llm="world/oracle", editor="world", output="runs/contrast")
    """
    expect(pairs, Pairs, "pairs", MAKE_PAIRS)
    kinds = (LLMOptions, ContrastEditorOptions, ContrastOptions)
    named = {"llm": id_of(llm), "editor": None if editor is None else id_of(editor)}
    of_llm, of_editor, wanted = fill(kinds, options | named, "contrast_set")
    ContrastSet(pairs, of_llm, of_editor, wanted, output=output).run()
    return load_any(str(output), Problems())["test"]


class ContrastSet:
    """A contrast set to make, checked; nothing is paid yet. The arguments are those of `contrast_set`.

    Attributes:
        items: The drawn pictures.
        stage: The folder.
    """

    def __init__(
        self,
        pairs: Pairs,
        llm: LLMOptions,
        editor: ContrastEditorOptions,
        options: ContrastOptions,
        *,
        output: str | Path,
    ) -> None:
        refuse_several("contrast")
        self.pairs, self.llm, self.editor, self.options = pairs, llm, editor, options
        self.captions: list[str] = pairs.captions["caption"][:]
        self.image_ids: list[str] = pairs.images["image_id"][:]
        self.sources = SourceImages(pairs.images, longest_side=options.image_side)
        self.items = draw_items(pairs, options.max_items, options.seed)
        prompts = prompts_of(llm)
        inputs: dict[str, Any] = {
            "pairs_fingerprint": pairs.fingerprint,
            "prompt_digest": prompts.digest(["contrast", "audit_i2t", "edit_t2i"]),
        }
        inputs |= local_weights(editor) if self.has_editor else {}
        decides = (pairs.source, llm, editor, options)
        writes = ("README.md", "data/*.parquet", "dropped.parquet")
        self.stage = Stage("contrast", output, decides, inputs, items=pairs.items, needs=NEEDS, writes=writes)
        self.stage.check()
        if (held := self.stage.summary) is not None and held["items"] > len(self.items):
            raise UserError(
                f"{output} holds {held['items']:,} items, and `max_items` {options.max_items:,} draws fewer. Give "
                "another --output, or at least as many."
            )

    @property
    def has_editor(self) -> bool:
        return self.editor.editor is not None

    @property
    def is_done(self) -> bool:
        """Whether the folder is finished, with all items, and another run could make no more of it."""
        summary = self.stage.summary
        if summary is None or summary["items"] < len(self.items):
            return False
        return not can_add(summary, self.llm.answer_attempts)

    def run(self) -> dict[str, Any]:
        """Make the set, and return its summary; a finished one is left as it is.

        Raises:
            RunStopped: As `contrast_set`; what was finished before is written.
        """
        if self.is_done:
            assert self.stage.summary is not None, "a finished folder has one"
            return self.stage.summary
        check_models(self.llm, self.editor)
        stop: BaseException | None = None

        def make(folder: Path | None) -> dict[str, Any]:
            nonlocal stop
            assert folder is not None, "the set is written"
            with open_ledger(self.llm, folder) as ledger:
                summary, stop = self._make(folder, ledger)
                return summary

        summary = self.stage.run(make, again=True)
        if stop is not None:
            raise stop
        if not summary["kept"]:
            raise RunStopped(f"{self.stage.folder} has no case: {_most(summary['dropped'])}. Give another --llm.")
        return summary

    def estimate(self, price: tuple[float, float] | None, image_price: float | None) -> list[StageCost]:
        """Estimate what the whole set takes at most, from a sample of the items that is asked without sending it.

        Prices are in US dollars per prompt token and answered token, and per image; None if unknown.
        """
        sample = [replace(item) for item in self.items[:: -(-len(self.items) // SAMPLE)]]
        with Ledger() as ledger:
            provider = counting(self.llm.llm)
            asker = Asker("rehearsal", ledger, provider=provider, prompts=prompts_of(self.llm))
            maker = self._maker(asker, None, rehearses_edit=self.has_editor)
            run_to_end(work_through(asker, [sample], maker.finish))
        share, stages = len(self.items) / len(sample), []
        for stage in ("contrast", "audit", "edit"):
            use, images = asker.usage.get((stage, "i2t"), Usage()), len(self.items) * (stage == "edit")
            calls = round(share * (use.calls + use.replayed))
            if calls or (images and self.has_editor):
                stages.append(stage_cost(stage, "i2t", use, calls, images, price=price, image_price=image_price))
        return stages

    def _make(self, folder: Path, ledger: Ledger) -> tuple[dict[str, Any], BaseException | None]:
        start = time.perf_counter()
        asker, images = open_asker(self.llm, ledger), None
        if self.has_editor:
            editor = open_editor(self.editor, self.llm, ledger)
            settings: dict[str, Any] = {"seed": self.options.seed, "save_as": self.editor.editor_format}
            images = Candidates(editor, self.sources, ledger.folder, count=1, **settings)
        self.stage.begin()
        stop = run_to_stop(self._work(self._maker(asker, images)))
        done = [item for item in self.items if item.is_finished]
        kept = [item for item in done if item.reason is None]
        kinds = Counter(item.kind for item in kept)
        counts = {kind: kinds[kind] for kind in KINDS if kinds[kind]}
        dropped = [item for item in done if item.reason is not None]
        self._write(folder, kept, dropped, counts, asker.model)
        return {
            "items": len(self.items),
            "kept": len(kept),
            "kinds": counts,
            "dropped": dict(Counter(str(item.reason) for item in dropped).most_common()),
            "unanswered": count_unanswered((str(item.reason), item.detail) for item in dropped),
            "attempts": asker.attempts,
            "open": len(self.items) - len(done),
            "paid": usage_rows(paid_in(ledger.path, ledger.run)),
            "seconds": time.perf_counter() - start,
        }, stop

    def _write(
        self, folder: Path, kept: Sequence[Item], dropped: Sequence[Item], counts: dict[Kind, int], llm: str
    ) -> None:
        """Write the rows, those that were dropped, and the card."""
        columns = "winoground" if self.has_editor else "sugarcrepe"
        pattern, _ = write_rows(folder / "data", self._rows(kept, columns), CONTRAST_FEATURES[columns])
        for old in set((folder / "data").glob("*.parquet")) - set((folder / "data").glob(pattern or "-")):
            old.unlink()  # of an earlier run that stopped
        pq.write_table(pa.Table.from_pylist(list(map(self._dropped, dropped)), DROPPED), folder / "dropped.parquet")
        about = {"split": self.pairs.source.split, "llm": llm, "editor": self.editor.editor}
        write_card(folder, "contrast", pattern=pattern, columns=columns, counts=counts, **about)

    def _maker(self, asker: Asker, images: Candidates | None, **how: bool) -> ItemMaker:
        return ItemMaker(self.captions, self.sources, asker, images, seed=self.options.seed, **how)

    async def _work(self, maker: ItemMaker) -> None:
        async def finish(item: Item) -> None:
            await maker.finish(item)
            bar.update()

        with Progress(total=len(self.items), desc="Contrasting", unit=" items", smoothing=0.05) as bar:
            candidates = [] if maker.images is None else [maker.images]
            await work_through(maker.asker, [self.items], finish, *candidates)

    def _rows(self, kept: Sequence[Item], columns: str) -> Iterator[dict[str, Any]]:
        for item in kept:
            name, text = self.image_ids[item.image], self.captions[item.caption]
            image = self.sources.reference(item.image)
            row = {"id": f"{name}/{item.caption}", "kind": item.kind, "image_id": name}
            if columns == "winoground":
                edited = {"bytes": None, "path": str(item.edited)}
                yield row | {"image_0": image, "image_1": edited, "caption_0": text, "caption_1": item.changed}
            else:
                yield row | {"image": image, "caption": text, "negative_caption": item.changed}

    def _dropped(self, item: Item) -> dict[str, str | None]:
        return {
            "image_id": self.image_ids[item.image],
            "caption": self.captions[item.caption],
            "changed": item.changed,
            "kind": item.kind,
            "reason": item.reason,
            "detail": item.detail,
        }


def _most(dropped: dict[str, int]) -> str:
    """Say why most items were dropped."""
    reason, count = next(iter(dropped.items()))
    return f"{count:,} of {sum(dropped.values()):,} items were dropped as {reason} ({REASONS[reason]})"
