"""What a study asks at most, and its price at list prices, before anything is paid (`--dry-run`).

Baselines declare how much they ask for each caption. RePair's stages are rehearsed on made-up failures. Tokens are
counted on a sample. Every failure counts as one that passes the audit, and no request as repeated.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Any

from repair_hf.analysis.costs import Item, items_of, span, whole_price
from repair_hf.llm.calls import format_dollars
from repair_hf.llm.cost import Estimate, StageCost, price_per_image, price_per_token
from repair_hf.llm.ledger_file import paid_by
from repair_hf.llm.tokens import count_tokens, text_tokens
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.options import UserError
from repair_hf.study.methods.method import Baseline, Maker, Method, RepairVariant
from repair_hf.study.options import Models
from repair_hf.study.plan import Plan
from repair_hf.study.setting import Setting, StudyData
from repair_hf.synthesis.estimate import Rehearsal, estimate_run, rehearse
from repair_hf.synthesis.models import find_editor, find_llm, prompts_of
from repair_hf.synthesis.options import RepairOptions, SynthesisOptions
from repair_hf.synthesis.sources import SourceImages
from repair_hf.toyworld.corpus import CAPTIONS, build_world

SAMPLE = 24  # captions and images that tokens are counted on
HEADS = ("method", "LLM calls", "images", "K tokens in", "K out", "dollars")


class Prices:
    """Prices the methods of a dataset, from its size and a sample of its pairs, which may be all of them."""

    def __init__(self, setting: Setting, data: StudyData) -> None:
        self.setting, self.data = setting, data
        if data.world is None:
            self.sample = data.pairs
            self.images, self.captions = len(self.sample.images), len(self.sample.captions)
        else:  # a few pictures of the world that would be drawn
            self.images, self.captions = data.world["train"], CAPTIONS * data.world["train"]
            self._folder = tempfile.TemporaryDirectory()
            self.sample = load_pairs(build_world(self._folder.name, splits={"train": SAMPLE}))

    def of(self, method: Method) -> dict[str, tuple[Models, Estimate]]:
        """Price what a method asks: by prompt, by maker's images, or by the folder of its records."""
        models = self.setting.models_of(method)
        if isinstance(method, Baseline):
            makers = method.parts.values()
            return {name: (models, each) for maker in makers for name, each in self._maker(maker, models).items()}
        if self.setting.takes_records(method, self.data):
            return {}
        return {method.product: (models, self._repair(method, models))}

    def together(self, wanted: Sequence[str]) -> list[tuple[Models, Estimate]]:
        """Price methods together: what several share counts once, and so does what a variant takes from `repair`."""
        found: dict[str, tuple[Models, Estimate]] = {}
        methods = [self.setting.methods[name] for name in wanted]
        has_repair = any(isinstance(method, RepairVariant) and method.product == "repair" for method in methods)
        for method in methods:
            for name, (models, requests) in self.of(method).items():
                if has_repair and isinstance(method, RepairVariant) and name != "repair":
                    requests = self._new(method, models, requests)
                known = found.get(name, (models, Estimate()))[1]
                if requests.llm_calls + requests.image_calls >= known.llm_calls + known.image_calls:
                    found[name] = models, requests
        return list(found.values())

    def _new(self, variant: RepairVariant, models: Models, requests: Estimate) -> Estimate:
        """Return the requests of a variant that `repair` has not made: another editor asks for images alone."""
        if variant.swap and models.llm == self.setting.models[None].llm:
            return Estimate(tuple(stage for stage in requests.stages if stage.image_calls))
        return requests if variant.mine or variant.swap or "audited" in variant.synthesize else Estimate()

    def _maker(self, maker: Maker, models: Models) -> dict[str, Estimate]:
        token_price, image_price = prices_of(models)
        found = {}
        for prompt, times in maker.asks.items():
            calls = times * self.captions
            asked, answered = (calls * each for each in self._tokens(prompt))
            price = None if token_price is None else asked * token_price[0] + answered * token_price[1]
            found[prompt] = Estimate((StageCost(prompt, "i2t", calls, 0, asked, answered, price),))
        count = (maker.edits + maker.draws) * self.captions
        price = 0.0 if not count else None if image_price is None else count * image_price
        return found | {f"{maker.name}, images": Estimate((StageCost("edit", "t2i", 0, count, 0, 0, price),))}

    @cache  # noqa: B019
    def _tokens(self, prompt: str) -> tuple[float, float]:
        """Tokens of a request and of its answer, which is about as long as the caption."""
        rows, llm = range(min(SAMPLE, len(self.sample))), self.setting.models[None].llm
        sources = SourceImages(self.sample.images)
        texts = [self.sample.captions[row]["caption"] for row in rows]
        urls = [sources.url(int(self.sample.caption_image[row])) for row in rows]
        chats = [
            prompts_of(llm).chat(prompt, caption=text, source_image=url) for text, url in zip(texts, urls, strict=True)
        ]
        asked = [count_tokens(find_llm(llm)[1], chat) for chat in chats]
        return sum(asked) / len(asked), sum(map(text_tokens, texts)) / len(texts)

    def _repair(self, variant: RepairVariant, models: Models) -> Estimate:
        mining = self.setting.mining(self.data)
        most = mining["max_queries"] or self.captions
        counts = {"i2t": min(self.images, most) * mining["d_i2t"], "t2i": min(self.captions, most) * mining["d_t2i"]}
        counts = {way: count for way, count in counts.items() if way in variant.directions}
        options = SynthesisOptions(**RepairOptions(**variant.synthesize).as_keywords())
        token_price, image_price = prices_of(models)
        rehearsal = self._rehearsal(find_llm(models.llm)[1], options.audited, models.llm.prompts)
        return estimate_run(rehearsal, counts, options, price=token_price, image_price=image_price)

    @cache  # noqa: B019
    def _rehearsal(self, model: str, audited: bool, _: str | None) -> Rehearsal:
        images, captions = len(self.sample.images), self.sample.caption_image
        queries = range(min(SAMPLE, images))
        rows: list[dict[str, Any]] = [
            {"direction": "i2t", "q": q, "fp": self.sample.captions_of((q + 1) % images)[0]} for q in queries
        ]
        rows += [{"direction": "t2i", "q": q, "fp": (int(captions[q]) + 1) % images} for q in queries]
        options, prompts = SynthesisOptions(audited=audited), prompts_of(self.setting.models[None].llm)
        return rehearse(self.sample, rows, model, options, prompts)


def prices_of(models: Models) -> tuple[tuple[float, float] | None, float | None]:
    """Return dollars per token (in, out) and per image: 0 for local models, None for an unknown price."""
    (llm_place, llm_name), (editor_place, editor_name) = find_llm(models.llm), find_editor(models.editor)
    return (
        price_per_token(llm_name, batch=models.llm.batch) if llm_place == "litellm" else (0.0, 0.0),
        price_per_image(editor_name) if editor_place == "litellm" else 0.0,
    )


def price_table(prices: Prices, wanted: Sequence[str]) -> tuple[list[tuple[str, ...]], list[Item]]:
    """Return the rows of a table with `HEADS`, the last for all methods together, and the items of the whole price."""
    asked = prices.together(wanted)
    needs = {name: [each for _, each in prices.of(prices.setting.methods[name]).values()] for name in wanted}
    rows = []
    for name, parts in (needs | {"all together": [each for _, each in asked]}).items():
        one = sum(parts, Estimate())
        tokens = (f"{count / 1000:,.0f}" for count in (one.prompt_tokens, one.completion_tokens))
        rows.append((name, f"{one.llm_calls:,.0f}", f"{one.image_calls:,.0f}", *tokens, format_dollars(one.dollars)))
    items = [item for models, each in asked for item in items_of(each, models.llm, models.editor) if item.number]
    return rows, sorted(items, key=lambda item: item.kind)


def price_notes(setting: Setting, wanted: Sequence[str], items: Sequence[Item]) -> list[str]:
    """Describe the whole price, what is paid already, and the time of the trainings, from a measured step."""
    folders = [path for data in setting.datasets.values() for path in data.folder.glob("*") if path.is_dir()]
    spent, answers = paid_by(folders)
    lines = []
    if answers:
        lines.append(
            f"{setting.output} holds {answers:,} answers, for {format_dollars(spent)}; they are not paid again."
        )
    return [*lines, *_training_time(setting, wanted), whole_price(items)]


def _training_time(setting: Setting, wanted: Sequence[str]) -> list[str]:
    """Measure a step of plain training of each dataset that is there, and multiply."""
    from repair_hf.training.config import RepairConfig
    from repair_hf.training.report import measure_step
    from repair_hf.training.trainer import RepairTrainer

    lines = []
    plan = Plan(setting, wanted, lambda cell: None)
    plan.arms()
    for data in setting.datasets.values():
        cells = [cell for cell in plan.missing if cell.data == data.name and cell.settings.epochs]
        if data.world is not None or not cells:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                config = RepairConfig(output_dir=folder, **setting.training(data))
                trainer = RepairTrainer(data.retriever(), config, data.pairs)
                steps = sum(math.ceil(cell.settings.epochs * trainer.sampler.batches) for cell in cells)
                seconds = measure_step(trainer)["seconds"]
            except UserError as error:  # such as mixed precision without a GPU
                lines.append(f"{data.name}: {len(cells):,} trainings or more; no step could be measured here: {error}")
                continue
        lines.append(
            f"{data.name}: {len(cells):,} trainings of {steps:,} steps in all, or more. A step of plain training "
            f"takes {seconds:.2f} s here (measured): at least {span(seconds * steps / 60)}; edits make steps longer."
        )
    return lines
