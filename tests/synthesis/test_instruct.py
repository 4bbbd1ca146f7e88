"""Edit instructions: their error types, and what is no instruction."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from repair_hf.synthesis.instruct import CaptionInstruction, ImageInstruction, error_types, is_no_change

REST = ": The image shows more. Therefore, replace 'a' with 'two'."


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("[Count Error]", ["Count"]),
        ("[Object Error, Count Error]", ["Object", "Count"]),
        ("[Hallucination]", ["Hallucination"]),
        ("  [relation error; ACTION ERROR]", ["Relation", "Action"]),
        ("[Attribute Error][Object Error]", ["Attribute", "Object"]),
        ("[Attribute Error], [Object Error]", ["Attribute", "Object"]),
        ("[Attribute and Hallucination Error]", ["Attribute", "Hallucination"]),
        ("[Object Error, Object Error]", ["Object"]),
        ("[No Error]", []),
    ],
)
def test_reads_the_error_types(head, expected):
    assert error_types(head + REST) == expected
    assert is_no_change("i2t", head + REST) == (not expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Replace 'a' with 'b'.",
        "[]: nothing",
        "[Colour Error]: red",
        "[No Error, Count Error]: x",
        "Well, [Count Error]: two",
        "[Object Error, Colour Error]: red",
    ],
)
def test_refuses_an_instruction_without_known_types(text):
    with pytest.raises(ValidationError, match="edit_instruction"):
        CaptionInstruction(edit_instruction=text)


def test_an_image_instruction_says_something():
    with pytest.raises(ValidationError):
        ImageInstruction(edit_instruction="  \n")


def test_types_named_later_in_the_text_do_not_count():
    assert error_types("[Count Error]: two, not [Object Error]. Therefore, remove '[x]'.") == ["Count"]


@pytest.mark.parametrize(
    "text",
    [
        "No change.",
        "no change",
        " No change. ",
        "No changes.",
        "No change needed.",
        "No changes are needed",
        "No change is necessary.",
        "No changes need to be made to the image.",
        "No change: the caption fits the image.",
        "No change, since the bus is red already.",
        "No change — the image shows two dogs on a beach, as the caption says.",
        "No change. Keep the background, the viewpoint and the light as they are.",
        "No change is required; the caption fits. Leave everything as it is.",
    ],
)
def test_an_image_may_need_no_change(text):
    assert is_no_change("t2i", text) and not is_no_change("t2i", f"{text} Only recolour the bus.")


@pytest.mark.parametrize(
    "text",
    [
        "No change to the background; recolour the bus red.",
        "No change in the light. Recolour the bus red.",
        "No change to the image but a red bus.",
        "No change: the image stays as it is except the bus, which becomes red.",
        "No changes needed to the dog; remove the ball.",
        "No change the bus to red.",
        "Recolour the bus red. No change.",
        "No change: " + 40 * "the image fits as it is, as the caption fits, " + "but recolour the bus red.",
        "Nothing changes but the bus, which becomes red.",
    ],
)
def test_a_change_among_what_stays_is_a_change(text):
    assert not is_no_change("t2i", text)
