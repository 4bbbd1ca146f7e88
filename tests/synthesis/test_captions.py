"""Edited captions: what is left of an answer."""

from __future__ import annotations

import pytest

from repair_hf.llm.answers import AnswerError, RefusedAnswer, UnparsedAnswer
from repair_hf.synthesis.captions import clean, usable

SOURCE = "One dog runs."


@pytest.mark.parametrize(
    ("answer", "caption"),
    [
        ("  Two dogs\n run.\n", "Two dogs run."),
        ('"Two dogs run."', "Two dogs run."),
        ("“Two dogs run.”", "Two dogs run."),
        ('"Stop" and "go" signs', '"Stop" and "go" signs'),
        ('A sign says "go"', 'A sign says "go"'),
        (r'"A sign says \"go\" to us"', 'A sign says "go" to us'),
        (r'"Two dogs \ud83d run."', "Two dogs ? run."),
        ("```\nTwo dogs run.\n```", "Two dogs run."),
        ('```text\n"Two dogs run."\n```', "Two dogs run."),
        ("[Two] dogs run.", "[Two] dogs run."),
        ("{Two} dogs run.", "{Two} dogs run."),
        ('"', '"'),
        ("**Two dogs run.**", "Two dogs run."),
        ("Corrected caption: Two dogs run.", "Two dogs run."),
        ('Caption: "Two dogs run."', "Two dogs run."),
        ('"Caption: Two dogs run."', "Two dogs run."),
        ("**Corrected caption:** Two dogs run.", "Two dogs run."),
        ("**Corrected Caption**: **Two dogs run.**", "Two dogs run."),
        ("Here is the corrected caption: Two dogs run.", "Two dogs run."),
        ("Sure! Here’s the edited caption:\nTwo dogs run.", "Two dogs run."),
        ("Here is the corrected caption:\n\n```\nTwo dogs run.\n```", "Two dogs run."),
        ("Two dogs run. \n(I replaced 'One' with 'Two'.)", "Two dogs run."),
        ('"Two dogs run."\n\n(Changed the number.)', "Two dogs run."),
        ("Two dogs run.\n\nNote: the number was wrong.\nNow it is right.", "Two dogs run."),
        ("Two dogs run.\n**Changes made:**\n- One to two", "Two dogs run."),
        ("A sign that reads:\nstop", "A sign that reads: stop"),
        ("Two dogs\n(one brown) run.", "Two dogs (one brown) run."),
    ],
)
def test_takes_a_caption_out_of_its_wrapping(answer, caption):
    assert clean(answer, SOURCE) == caption


@pytest.mark.parametrize(
    "caption",
    [
        "\"I'm sorry, but I can't help with that\" stands on a mug.",
        '"I\'m sorry", a sign says.',
        "I'm sorry to see this bike in the snow.",
        "I'm sitting on a bench with my dog.",
        "I can't help but smile at this puppy.",
        "I can't help falling in love with this cat.",
        "I cannot believe the size of this pizza.",
        "Sorry, no dogs allowed here.",
        "Unfortunately the bus has left.",
        "A sign that reads: stop",
        "A sign with the caption: stop",
        "A meme whose caption reads: I'm sorry, I can't do that",
        "The caption reads: when you see it",
        "Here is a cat: it sleeps.",
        "Sure enough, two dogs run.",
        "Two dogs (one brown, one white) run.",
        "My cake (I added strawberries)",
        "Two dogs run. (Note the shadow.)",
        "A sign that reads **stop** in **bold**",
        "**Stop** signs and **go** signs",
        "Note: two dogs run.",
    ],
)
def test_leaves_a_caption_as_it_is(caption):
    assert clean(caption, SOURCE) == clean(caption, caption) == caption


@pytest.mark.parametrize(
    ("source", "edit"),
    [
        ("Caption: one dog runs.", "Caption: two dogs run."),
        ("I'm sorry, but I can't edit, says a man.", "I'm sorry, but I can't edit, says a woman."),
    ],
)
def test_what_the_source_says_too_is_part_of_the_caption(source, edit):
    assert clean(edit, source) == edit


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (RefusedAnswer, "I'm sorry, but I can't help with that."),
        (RefusedAnswer, "I’m sorry, I can’t assist with this request."),
        (RefusedAnswer, "Sorry, but I cannot edit this caption."),
        (RefusedAnswer, "I cannot fulfil this request."),
        (RefusedAnswer, "I am unable to carry out the instruction."),
        (RefusedAnswer, "I won't do that."),
        (RefusedAnswer, "I apologize, but the instruction is unclear."),
        (RefusedAnswer, "As an AI language model, I can't provide that."),
        (RefusedAnswer, "I'm sorry, but I can't help with that.\n\nIs there something else?"),
        (UnparsedAnswer, '{"caption": "Two dogs run."}'),
        (UnparsedAnswer, "Two dogs run.\n\nThree dogs run."),
        (UnparsedAnswer, '""'),
        (UnparsedAnswer, "  \n "),
        (UnparsedAnswer, "Corrected caption:"),
        (UnparsedAnswer, '```\n""\n```'),
    ],
)
def test_what_holds_no_caption_cannot_be_used(error, answer):
    with pytest.raises(error, match="declined" if error is RefusedAnswer else "no caption"):
        clean(answer, SOURCE)


def test_one_caption_among_the_candidates_is_enough():
    refusal, fault = RefusedAnswer("declined"), UnparsedAnswer("cut off")
    assert usable([refusal, fault, "Two dogs"]) == [None, None, "Two dogs"]
    for answers in ([refusal, fault], [fault, refusal]):
        with pytest.raises(AnswerError) as caught:
            usable(answers)
        assert caught.value is answers[0]
