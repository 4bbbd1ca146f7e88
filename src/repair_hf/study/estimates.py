"""Estimate the requests and the cost of a study, method by method, before anything is paid (`--dry-run`).

Baselines declare how much they ask for each caption. RePair's stages are rehearsed on made-up failures. Tokens are
counted on a sample. The estimate assumes that every failure passes the audit and that no request is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from repair_hf.llm.cost import Estimate, StageCost, price_per_image, price_per_token
from repair_hf.llm.ledger_file import read_calls
from repair_hf.llm.prompts import Prompts
from repair_hf.llm.tokens import count_tokens, text_tokens
from repair_hf.pairs.dataset import Pairs
from repair_hf.study.methods.method import Baseline, Maker, Method, RepairVariant
from repair_hf.study.setting import Setting
from repair_hf.study.swaps import Models
from repair_hf.synthesis.estimate import estimate_run, rehearse
from repair_hf.synthesis.models import find_editor, find_llm, prompts_of
from repair_hf.synthesis.options import EditorOptions, LLMOptions, SynthesisOptions
from repair_hf.synthesis.sources import SourceImages

SAMPLE = 24  # captions and images that tokens are counted on
CANDIDATES = 3  # of RePair's edits, its default


@dataclass(frozen=True)
class Corpus:
    """The size of the training data."""

    images: int
    captions: int


class Estimator:
    """Estimates methods from a corpus's size and a sample of its pairs, which may be all of them."""

    def __init__(self, setting: Setting, corpus: Corpus, sample: Pairs) -> None:
        self.setting, self.corpus, self.sample = setting, corpus, sample
        self.sources = SourceImages(sample.images)

    def of(self, method: Method) -> Estimate:
        return sum(self.parts(method).values(), Estimate())

    def of_all(self, methods: Sequence[Method]) -> Estimate:
        """Estimate methods together, as `by_models` does."""
        return sum((requests for _, requests in self.by_models(methods)), Estimate())

    def by_models(self, methods: Sequence[Method]) -> list[tuple[Models, Estimate]]:
        """Estimate each part of methods, with the models that it asks.

        What several share counts once, and so does what a variant reuses from RePair. Only certain reuse counts:
        another choice of candidates asks nothing new, another editor asks for images only, and the first of several
        rounds is RePair's own.
        """
        found: dict[str, tuple[Models, Estimate]] = {}
        has_repair = any("repair" in self.parts(method) for method in methods)
        for method in methods:
            for name, requests in self.parts(method).items():
                if has_repair and isinstance(method, RepairVariant) and name != "repair":
                    requests = self._new(method, requests)
                one = self.setting.models_of(method), requests
                found[name] = max(found.get(name, one), one, key=lambda each: each[1].llm_calls + each[1].image_calls)
        return list(found.values())

    def parts(self, method: Method) -> dict[str, Estimate]:
        """Estimate the parts that methods can share: a prompt, a maker's images, a variant's records."""
        if isinstance(method, Baseline):
            return {name: each for maker in method.parts.values() for name, each in self._of_maker(maker).items()}
        if not method.records or self.setting.has_records(method):
            return {}
        requests = self._of_repair(method)
        return {method.product: self._new(method, requests) if self._has_answers else requests}

    @cached_property
    def _has_answers(self) -> bool:
        """Whether the study's LLM gave the answers that lie beside existing records, which variants take over."""
        calls = (read_calls(Path(folder)) for folder in self.setting.records)
        first = (next((call for call in each if call["calls"]), {}) for each in calls)
        return any(call.get("model") == find_llm(self.setting.llm)[1] for call in first)

    def _of_maker(self, maker: Maker) -> dict[str, Estimate]:
        token_price, image_price = prices(self.setting.llm, self.setting.editor)
        found = {}
        for prompt, times in maker.asks.items():
            calls = times * self.corpus.captions
            tokens_in, tokens_out = (calls * each for each in self._tokens(prompt))
            dollars = None if token_price is None else tokens_in * token_price[0] + tokens_out * token_price[1]
            found[prompt] = Estimate((StageCost(prompt, "i2t", calls, 0, tokens_in, tokens_out, dollars),))
        images = (maker.edits + maker.draws) * self.corpus.captions
        return found | {f"{maker.name}, images": _of_images(images, image_price)}

    @cache  # noqa: B019
    def _tokens(self, prompt: str) -> tuple[float, float]:
        """Tokens of a request and of its answer, which is about as long as the caption."""
        rows = range(min(SAMPLE, len(self.sample.captions)))
        texts = [self.sample.captions[row]["caption"] for row in rows]
        urls = [self.sources.url(int(self.sample.caption_image[row])) for row in rows]
        model = find_llm(self.setting.llm)[1]
        asked = [
            count_tokens(model, prompts_of(self.setting.llm).chat(prompt, caption=text, source_image=url))
            for text, url in zip(texts, urls, strict=True)
        ]
        return sum(asked) / len(asked), sum(map(text_tokens, texts)) / len(texts)

    def _of_repair(self, variant: RepairVariant) -> Estimate:
        llm, editor = self.setting.llm_of(variant), self.setting.editor_of(variant)
        is_audited = variant.synthesize.get("audited", True)
        estimate, made = self._rehearse(find_llm(llm)[1], *prices(llm, editor), is_audited, prompts_of(llm))
        times = {side: variant.rounds * count / made for side, count in self.triplets(variant).items()}
        return Estimate(tuple(_scaled(stage, times[stage.direction]) for stage in estimate.stages))

    def triplets(self, variant: RepairVariant) -> dict[str, int]:
        """Return the failures of one round by direction, at most."""
        mine, most = self.setting.mine, self.setting.mine["max_queries"] or self.corpus.captions
        i2t, t2i = min(self.corpus.images, most) * mine["d_i2t"], min(self.corpus.captions, most) * mine["d_t2i"]
        if variant.reciprocal:  # the captions' failures become the images'
            return {"i2t": i2t + t2i, "t2i": 0}
        return {"i2t": i2t * ("i2t" in variant.directions), "t2i": t2i * ("t2i" in variant.directions)}

    @cache  # noqa: B019
    def _rehearse(
        self,
        model: str,
        token_price: tuple[float, float] | None,
        image_price: float | None,
        is_audited: bool,
        prompts: Prompts,
    ) -> tuple[Estimate, int]:
        """Estimate some made-up failures, and return how many of each direction there are."""
        images, captions = len(self.sample.images), self.sample.caption_image
        queries = range(min(SAMPLE, images))
        rows = [{"direction": "i2t", "q": q, "fp": self.sample.captions_of((q + 1) % images)[0]} for q in queries]
        rows += [{"direction": "t2i", "q": q, "fp": (int(captions[q]) + 1) % images} for q in queries]
        options = SynthesisOptions(candidates=CANDIDATES, audited=is_audited)
        rehearsal = rehearse(self.sample, rows, model, options, prompts)
        mined = dict.fromkeys(("i2t", "t2i"), len(queries))
        return estimate_run(rehearsal, mined, options, price=token_price, image_price=image_price), len(queries)

    def _new(self, variant: RepairVariant, requests: Estimate) -> Estimate:
        """The requests of a variant that RePair has not made already."""
        if variant.swap and self.setting.llm_of(variant) == self.setting.llm:
            price = prices(self.setting.llm, self.setting.editor_of(variant))[1]
            return _of_images(requests.image_calls, price)
        is_alike = set(variant.synthesize) <= {"select"} and not (variant.mine or variant.swap or variant.reciprocal)
        if variant.other_model or not is_alike:
            return requests
        return Estimate() if variant.rounds == 1 else self._of_repair(replace(variant, rounds=variant.rounds - 1))


def prices(llm: LLMOptions, editor: EditorOptions) -> tuple[tuple[float, float] | None, float | None]:
    """Return dollars per token (in, out) and per image: 0 for local models, None for an unknown price."""
    (llm_place, llm_name), (editor_place, editor_name) = find_llm(llm), find_editor(editor)
    return (
        price_per_token(llm_name, batch=llm.batch) if llm_place == "litellm" else (0.0, 0.0),
        price_per_image(editor_name) if editor_place == "litellm" else 0.0,
    )


def _scaled(stage: StageCost, times: float) -> StageCost:
    return StageCost(
        stage.stage,
        stage.direction,
        times * stage.llm_calls,
        times * stage.image_calls,
        times * stage.prompt_tokens,
        times * stage.completion_tokens,
        _times(times, stage.dollars),
    )


def _of_images(count: float, price: float | None) -> Estimate:
    return Estimate((StageCost("edit", "t2i", 0, count, 0, 0, _times(count, price)),))


def _times(count: float, price: float | None) -> float | None:
    if not count:
        return 0.0
    return None if price is None else count * price
