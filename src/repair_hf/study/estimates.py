"""What a study would ask for and cost, method by method, before anything is paid.

In:  methods, how many images and captions there are, a sample of them, the means.
Out: `Asked` for each method, and for all together.

The makers say what they ask of each caption; RePair's stages are rehearsed as its own dry run rehearses them, on made-up failures. Tokens are
counted on a sample. Every failure counts as one that passes the audit, and answers of no use, which are asked for once more, do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

from repair_hf.llm.cost import Estimate, StageCost, price_per_image, price_per_token
from repair_hf.llm.prompts import chat
from repair_hf.llm.tokens import count_tokens, text_tokens
from repair_hf.pairs.dataset import Pairs
from repair_hf.study.methods.method import Baseline, Maker, Method, Repair
from repair_hf.study.setting import Setting
from repair_hf.synthesis.estimate import estimate_run
from repair_hf.synthesis.models import EditorOptions, LLMOptions, find_editor, find_llm
from repair_hf.synthesis.options import SynthesisOptions
from repair_hf.synthesis.sources import SourceImages

SAMPLE = 24  # captions and images that tokens are counted on
CANDIDATES = 3  # of RePair's edits, its default


@dataclass(frozen=True)
class Asked:
    """What is asked for.

    Args:
        llm_calls: Requests for a text.
        image_calls: Images.
        prompt_tokens: Of the LLM.
        completion_tokens: Of the LLM.
        dollars: By list prices; None where none is known.
    """

    llm_calls: float = 0
    image_calls: float = 0
    prompt_tokens: float = 0
    completion_tokens: float = 0
    dollars: float | None = 0.0

    def __add__(self, other: Asked) -> Asked:
        both = [(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)]
        return Asked(*(None if None in pair else sum(pair) for pair in both))


@dataclass(frozen=True)
class Corpus:
    """How much there is to train on.

    Args:
        images: Training images.
        captions: Training captions.
    """

    images: int
    captions: int


class Estimator:
    """Estimates methods.

    Args:
        setting: The means.
        corpus: The whole.
        sample: Some of it, or all.
    """

    def __init__(self, setting: Setting, corpus: Corpus, sample: Pairs) -> None:
        self.setting, self.corpus, self.sample = setting, corpus, sample
        self.sources = SourceImages(sample.images)

    def of(self, method: Method) -> Asked:
        """What a method asks for if it shares nothing with another."""
        return sum(self.parts(method).values(), Asked())

    def of_all(self, methods: Sequence[Method]) -> Asked:
        """What all methods ask for together: what several share counts once, and so does what a variant takes from RePair.

        That holds for what is certain before anything is made: choosing otherwise asks nothing new, another editor asks for images alone, and
        the first of several rounds is RePair's own.
        """
        found: dict[str, Asked] = {}
        is_repaired = any(
            isinstance(method, Repair) and method.product == "repair" and method.records for method in methods
        )
        for method in methods:
            for name, asked in self.parts(method).items():
                if is_repaired and isinstance(method, Repair) and name != "repair":
                    asked = self._new(method, asked)
                found[name] = max(found.get(name, Asked()), asked, key=lambda one: one.llm_calls + one.image_calls)
        return sum(found.values(), Asked())

    def parts(self, method: Method) -> dict[str, Asked]:
        """The same by what can be shared: a prompt of the makers, a maker's images, the records of a variant."""
        if isinstance(method, Baseline):
            return {name: asked for maker in method.parts.values() for name, asked in self._of_maker(maker).items()}
        return {method.product: self._of_repair(method)} if method.records else {}

    def _of_maker(self, maker: Maker) -> dict[str, Asked]:
        found, (token_price, image_price) = {}, prices(self.setting.llm, self.setting.editor)
        for prompt, times in maker.asks.items():
            calls = times * self.corpus.captions
            tokens = [calls * each for each in self._tokens(prompt)]
            dollars = (
                None if token_price is None else sum(n * price for n, price in zip(tokens, token_price, strict=True))
            )
            found[prompt] = Asked(calls, 0, *tokens, dollars)
        images = (maker.edits + maker.draws) * self.corpus.captions
        return found | {f"{maker.name}, images": Asked(0, images, 0, 0, _times(images, image_price))}

    @cache  # noqa: B019
    def _tokens(self, prompt: str) -> tuple[float, float]:
        """Tokens of one request and of its answer, which is about as long as the caption."""
        rows = range(min(SAMPLE, len(self.sample.captions)))
        texts = [self.sample.captions[row]["caption"] for row in rows]
        urls = [self.sources.url(int(self.sample.caption_image[row])) for row in rows]
        model = find_llm(self.setting.llm)[1]
        asked = [
            count_tokens(model, chat(prompt, caption=text, source_image=url))
            for text, url in zip(texts, urls, strict=True)
        ]
        return sum(asked) / len(asked), sum(map(text_tokens, texts)) / len(texts)

    def _of_repair(self, variant: Repair) -> Asked:
        setting = self.setting
        llm = setting.weak_llm if variant.weak == "llm" else setting.llm
        editor = setting.weak_editor if variant.weak == "editor" else setting.editor
        is_audited = variant.synthesize.get("audited", True)
        estimate, made = self._rehearse(find_llm(llm)[1], *prices(llm, editor), is_audited)
        times = {side: variant.rounds * count / made for side, count in self._triplets(variant).items()}
        return sum((_scaled(stage, times[stage.direction]) for stage in estimate.stages), Asked())

    def _triplets(self, variant: Repair) -> dict[str, int]:
        """Failures of each direction, at most."""
        mine, most = self.setting.mine, self.setting.mine["max_queries"] or self.corpus.captions
        i2t, t2i = min(self.corpus.images, most) * mine["d_i2t"], min(self.corpus.captions, most) * mine["d_t2i"]
        if variant.reciprocal:  # the captions' failures are the images' too
            return {"i2t": i2t + t2i, "t2i": 0}
        return {"i2t": i2t * ("i2t" in variant.directions), "t2i": t2i * ("t2i" in variant.directions)}

    @cache  # noqa: B019
    def _rehearse(
        self, model: str, token_price: tuple[float, float] | None, image_price: float | None, is_audited: bool
    ) -> tuple[Estimate, int]:
        """What some made-up failures take, and how many of each direction there are."""
        images, captions = len(self.sample.images), self.sample.caption_image
        rows = [
            {"direction": "i2t", "q": q, "fp": self.sample.captions_of((q + 1) % images)[0]}
            for q in range(min(SAMPLE, images))
        ]
        rows += [
            {"direction": "t2i", "q": q, "fp": (int(captions[q]) + 1) % images} for q in range(min(SAMPLE, images))
        ]
        options = SynthesisOptions(candidates=CANDIDATES, audited=is_audited)
        estimate = estimate_run(self.sample, rows, model, options, price=token_price, image_price=image_price)
        return estimate, len(rows) // 2

    def _new(self, variant: Repair, asked: Asked) -> Asked:
        """What a variant asks that RePair has not asked already."""
        if variant.weak == "editor":
            price = prices(self.setting.llm, self.setting.weak_editor)[1]
            return Asked(0, asked.image_calls, 0, 0, _times(asked.image_calls, price))
        is_alike = set(variant.synthesize) <= {"select"} and not (variant.mine or variant.weak or variant.reciprocal)
        if variant.other_model or not is_alike:
            return asked
        return Asked() if variant.rounds == 1 else self._of_repair(replace(variant, rounds=variant.rounds - 1))


def prices(llm: LLMOptions, editor: EditorOptions) -> tuple[tuple[float, float] | None, float | None]:
    """Dollars per token in and out, and per image; nothing for what runs here, None where no list price is known."""
    (llm_place, llm_name), (editor_place, editor_name) = find_llm(llm), find_editor(editor)
    return (
        price_per_token(llm_name) if llm_place == "litellm" else (0.0, 0.0),
        price_per_image(editor_name) if editor_place == "litellm" else 0.0,
    )


def _scaled(stage: StageCost, times: float) -> Asked:
    counts = (stage.llm_calls, stage.image_calls, stage.prompt_tokens, stage.completion_tokens)
    return Asked(
        *(times * count for count in counts),
        None if stage.dollars is None and times else times * (stage.dollars or 0.0),
    )


def _times(images: float, price: float | None) -> float | None:
    if not images:
        return 0.0
    return None if price is None else images * price
