"""The steps of a repair: audit a failure, instruct an edit, edit the caption or the image. (Paper section 3.)

A failure is real if its annotation holds (`gt_valid`), and its false positive is not a correct answer too
(`fp_too_similar`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from repair_hf.llm.answers import AnswerError, RefusedAnswer
from repair_hf.llm.asker import Asker
from repair_hf.synthesis.candidates import Candidates
from repair_hf.synthesis.options import RepairOptions
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.schemas import EditInstruction, RequiredEditInstruction, Verdict, Written
from repair_hf.synthesis.sources import UnreadableImage

FIELDS = {  # of the prompts: role -> field, by direction
    "i2t": {"q": "query_image", "gt": "ground_truth_caption", "fp": "false_positive_caption"},
    "t2i": {"q": "query_caption", "gt": "ground_truth_image", "fp": "false_positive_image"},
}
TEMPERATURE = 0.7  # of edits: candidates must differ, and still follow the instruction
MAX_TOKENS = 256  # of a caption


async def repair(
    task: RepairTask, asker: Asker, candidates: Candidates, builder: RecordBuilder, options: RepairOptions
) -> None:
    """Take a failure through all steps. Afterwards its task has candidates, or the reason why it was dropped.

    Raises:
        Deferred: If an answer comes with a batch.
        RunStopped: If the run cannot go on.
    """
    try:
        if options.audited:
            task.verdict = await audit(asker, task.direction, **builder.shown(task, "q", "gt", "fp"))
            if task.verdict.drop_reason is not None:
                return task.drop(task.verdict.drop_reason)
        task.instruction, task.error_types = await instruct(asker, task.direction, **builder.shown(task, "q", "fp"))
        if task.instruction is None:
            return task.drop("no_op", "the instruction finds nothing to change")
        if task.direction == "t2i":
            task.candidates = await candidates.make(task.at["fp"], task.instruction)
        else:
            caption = builder.shown(task, "fp")["fp"]
            task.candidates = await edit_caption(
                asker, caption, task.instruction, candidates=options.candidates, seed=options.seed
            )
    except (AnswerError, UnreadableImage) as error:
        task.drop(error.drop_reason, str(error))


async def audit(asker: Asker, direction: str, *, q: str, gt: str, fp: str) -> Verdict:
    """Audit one failure. `q`, `gt` and `fp` are captions, or images (`ImageURL`)."""
    messages = _messages(asker, "audit", direction, q=q, gt=gt, fp=fp)
    verdict: Any = await asker.ask(messages, stage="audit", direction=direction, schema=Verdict)
    return verdict


async def instruct(asker: Asker, direction: str, *, q: str, fp: str) -> tuple[str | None, list[str]]:
    """Ask what must change in the false positive, at least, so that it fits the query. Arguments as of `audit`.

    Returns:
        The instruction, None if nothing needs to change, which `always_instruct` of the prompts rules out; and the
        error types, each once.
    """
    messages = _messages(asker, "instruct", direction, q=q, fp=fp)
    schema = RequiredEditInstruction if asker.prompts.always_instruct else EditInstruction
    answer: Any = await asker.ask(messages, stage="instruct", direction=direction, schema=schema)
    return answer.edit_instruction, list(dict.fromkeys(answer.error_types))


async def edit_caption(
    asker: Asker, caption: str, instruction: str, *, candidates: int, seed: int
) -> list[str | None]:
    """Ask for edits of a false-positive caption.

    Raises:
        AnswerError: If no answer is usable; the error of the first one.
    """
    messages = asker.prompts.chat("edit_i2t", false_positive_caption=caption, edit_instruction=instruction)
    return await write(asker, messages, "edit", candidates=candidates, seed=seed)


async def write(asker: Asker, messages: list[dict], stage: str, *, candidates: int, seed: int) -> list[str | None]:
    """Ask for several texts, as `usable` returns them; errors are those of `usable`."""
    sampling: dict[str, Any] = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "seed": seed}
    questions = [
        asker.ask(messages, stage=stage, direction="i2t", schema=Written, sample=m, **sampling)
        for m in range(candidates)
    ]
    answers = await asyncio.gather(*questions, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, AnswerError):
            raise answer
    return usable(answers)


def usable(answers: Sequence[Any]) -> list[str | None]:
    """Return the texts among several answers, each a `Written` or an error; None where there is none.

    Raises:
        AnswerError: If there is no text at all: the error of the first answer, or a refusal.
    """
    texts = [answer.answer if isinstance(answer, Written) else None for answer in answers]
    if not any(texts):
        raise answers[0] if isinstance(answers[0], AnswerError) else RefusedAnswer("the model declined")
    return texts


def _messages(asker: Asker, step: str, direction: str, **contents: str) -> list[dict]:
    fields = {FIELDS[direction][role]: content for role, content in contents.items()}
    return asker.prompts.chat(f"{step}_{direction}", **fields)
