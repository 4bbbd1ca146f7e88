"""A provider of an LLM and of an image editor, which counts what it bills."""

import threading
import zlib
from collections import Counter

from provider_server import Question, Wire, edited, png, said

from repair_hf.toyworld import oracle

BILLS = {"answer": 1000 * 0.15e-6 + 100 * 0.6e-6, "image": 0.01383}  # at the list prices of the two models
MODELS = ("--llm", "openai/gpt-4o-mini", "--editor", "openai/gpt-image-1", "--editor-size", "64")


class Biller:
    """Answers and edits, always alike, and counts what it bills; `changed` is notified of each bill."""

    def __init__(self) -> None:
        self.counts, self.changed = Counter(), threading.Condition()

    @property
    def dollars(self) -> float:
        return sum(count * BILLS[kind] for kind, count in self.counts.items())

    def __call__(self, question: Question) -> Wire:
        is_answer = question.path.endswith("/chat/completions")
        with self.changed:
            self.counts["answer" if is_answer else "image"] += 1
            self.changed.notify_all()
        if is_answer:
            return Wire(body=said("openai", oracle.answer(question.messages, question.seed)), delay=0.02)
        name = zlib.crc32(question.data.partition(b'name="prompt"')[2].partition(b"--")[0])
        return Wire(body=edited("openai", png((48, 40), (name % 256, name // 256 % 256, 7))), delay=0.05)
