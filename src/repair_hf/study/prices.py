"""What a study asks at most, and its price at list prices, before anything is paid (`--dry-run`).

Baselines declare how much they ask for each caption. RePair's stages are rehearsed on made-up failures. Tokens are
counted on a sample. Every failure counts as one that passes the audit, and no request as repeated.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

from repair_hf.analysis.costs import Item, items_of, list_prices, whole_price
from repair_hf.llm.calls import format_dollars
from repair_hf.llm.cost import StageCost, add_stages
from repair_hf.llm.ledger_file import paid_by
from repair_hf.llm.tokens import count_tokens, text_tokens
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.study.methods.method import Maker, Records
from repair_hf.study.plan import Plan
from repair_hf.study.setting import Models, Setting
from repair_hf.synthesis.estimate import Rehearsal, estimate_run, rehearse
from repair_hf.synthesis.models import find_llm, prompts_of
from repair_hf.synthesis.options import RepairOptions
from repair_hf.synthesis.sources import SourceImages
from repair_hf.toyworld.corpus import CAPTIONS, build_world

SAMPLE = 24  # captions and images that tokens are counted on
HEADS = ("method", "LLM calls", "images", "K tokens in", "K out", "dollars")

Asked = dict[str, tuple[Models, StageCost]]  # by what is asked: methods that ask the same have the same key


class Prices:
    """Prices the methods of a study, from the size of its dataset and a sample of its pairs, or all of them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        if setting.world is None:
            self.sample = setting.pairs
            self.images, self.captions = len(self.sample.images), len(self.sample.captions)
        else:  # a few pictures of the world that would be drawn
            self.images, self.captions = setting.world["train"], CAPTIONS * setting.world["train"]
            self._folder = tempfile.TemporaryDirectory()
            self.sample = load_pairs(build_world(self._folder.name, splits={"train": SAMPLE}))

    def of(self, names: Sequence[str]) -> Asked:
        """Price what methods ask; what several share counts once."""
        found: Asked = {}
        for method in map(self.setting.methods.__getitem__, names):
            if not self.setting.means(method):
                continue
            models = self.setting.models_of(method.name)
            for part in method.parts.values():
                asked = self._repair(part, models) if isinstance(part, Records) else self._maker(part, models)
                for name, cost in asked.items():
                    if name not in found or cost.llm_calls >= found[name][1].llm_calls:
                        found[name] = models, cost
        return found

    def _maker(self, maker: Maker, models: Models) -> dict[str, StageCost]:
        token_price, image_price = list_prices(*models)
        found: dict[str, StageCost] = {}
        if calls := maker.answers * self.captions:
            asked, answered = (calls * each for each in self._tokens(maker.prompt))
            price = asked * token_price[0] + answered * token_price[1] if token_price else None
            found[maker.prompt] = StageCost(maker.prompt, "i2t", calls, 0, asked, answered, price)
        if count := (maker.edits + maker.draws) * self.captions:
            price = None if image_price is None else count * image_price
            found[f"{maker.name}, images"] = StageCost("edit", "t2i", 0, count, 0, 0, price)
        return found

    @cache  # noqa: B019
    def _tokens(self, prompt: str) -> tuple[float, float]:
        """Tokens of a request and of its answer, which is about as long as the caption."""
        rows, llm = range(min(SAMPLE, len(self.sample))), self.setting.models[None].llm
        sources, prompts, name = SourceImages(self.sample.images), prompts_of(llm), find_llm(llm)[1]
        texts = [self.sample.captions[row]["caption"] for row in rows]
        urls = [sources.url(int(self.sample.caption_image[row])) for row in rows]
        chats = [prompts.chat(prompt, caption=text, source_image=url) for text, url in zip(texts, urls, strict=True)]
        return sum(count_tokens(name, chat) for chat in chats) / len(rows), sum(map(text_tokens, texts)) / len(rows)

    def _repair(self, wanted: Records, models: Models) -> dict[str, StageCost]:
        mining = self.setting.mining(wanted)
        most = mining["max_queries"] or self.captions
        counts = {"i2t": min(self.images, most) * mining["d_i2t"], "t2i": min(self.captions, most) * mining["d_t2i"]}
        counts = {way: count for way, count in counts.items() if way in wanted.directions}
        options = RepairOptions(**wanted.synthesize)
        token_price, image_price = list_prices(*models)
        rehearsal = self._rehearsal(find_llm(models.llm)[1], options.audited, models.llm.prompts)
        estimate = estimate_run(rehearsal, counts, options, price=token_price, image_price=image_price)
        asks, makes = f"{wanted.mine} {options.audited} {models.llm}", f"{models.editor}"  # another editor only makes
        return {f"{asks} {cost.stage} {cost.direction} {makes if cost.image_calls else ''}": cost for cost in estimate}

    @cache  # noqa: B019
    def _rehearsal(self, model: str, audited: bool, _: str | None) -> Rehearsal:
        images, captions = len(self.sample.images), self.sample.caption_image
        queries = range(min(SAMPLE, images))
        rows: list[dict[str, Any]] = [
            {"direction": "i2t", "q": q, "fp": self.sample.captions_of((q + 1) % images)[0]} for q in queries
        ]
        rows += [{"direction": "t2i", "q": q, "fp": (int(captions[q]) + 1) % images} for q in queries]
        options, prompts = RepairOptions(audited=audited), prompts_of(self.setting.models[None].llm)
        return rehearse(self.sample, rows, model, options, prompts)


def total(asked: Asked) -> StageCost:
    return add_stages(cost for _, cost in asked.values())


def price_table(prices: Prices, wanted: Sequence[str]) -> tuple[list[tuple[str, ...]], list[Item]]:
    """Return the rows of a table with `HEADS`, the last for all methods together, and the items of the whole price."""
    together, rows = prices.of(wanted), []
    each: Mapping[str, Asked] = {name: prices.of([name]) for name in wanted}
    for name, asked in {**each, "all together": together}.items():
        one = total(asked)
        tokens = (f"{count / 1000:,.0f}" for count in (one.prompt_tokens, one.completion_tokens))
        rows.append((name, f"{one.llm_calls:,.0f}", f"{one.image_calls:,.0f}", *tokens, format_dollars(one.dollars)))
    items = [item for (llm, editor), cost in together.values() for item in items_of([cost], llm, editor)]
    return rows, sorted((item for item in items if item.number), key=lambda item: item.kind)


def price_notes(settings: Sequence[Setting], wanted: Sequence[str], items: Sequence[Item]) -> list[str]:
    """Describe the whole price, what is paid already, and the time of the trainings, from a measured step."""
    spent, answers = paid_by([path for each in settings for path in each.folder.glob("*") if path.is_dir()])
    lines = []
    if answers:
        paid = f"{settings[0].output} holds {answers:,} answers, for {format_dollars(spent)}"
        lines.append(f"{paid}; they are not paid again.")
    for setting in settings:
        plan = Plan(setting, wanted, lambda cell: None)
        plan.arms()
        lengths = [cell.epochs for cell in plan.missing if cell.epochs]
        if setting.world is None and lengths:
            lines.append(f"{setting.name}: {len(lengths):,} trainings or more; {_time(setting, lengths)}.")
    return [*lines, whole_price(items)]


def _time(setting: Setting, lengths: Sequence[float]) -> str:
    """Measure a step of plain training, and multiply."""
    from repair_hf.training.config import RepairConfig
    from repair_hf.training.report import measure_step
    from repair_hf.training.trainer import RepairTrainer

    with tempfile.TemporaryDirectory() as folder:
        try:
            config = RepairConfig(output_dir=folder, **setting.training)
            trainer = RepairTrainer(setting.retriever(), config, setting.pairs)
            steps = sum(math.ceil(epochs * trainer.sampler.batches) for epochs in lengths)
            seconds = measure_step(trainer)["seconds"]
        except UserError as error:  # such as mixed precision without a GPU
            return f"no step could be measured here: {error}"
    return (
        f"they take {steps:,} steps in all. A step of plain training takes {seconds:.2f} s here (measured): at least "
        f"{timedelta(seconds=round(seconds * steps))} (h:mm:ss); edits make steps longer"
    )
