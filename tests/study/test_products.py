"""What identifies samples, and which makers share answers."""

import pytest
from study_runs import load_makers

from repair_hf.llm import prompts
from repair_hf.study.products import name_of_samples, wording_digest

MAKERS = load_makers()


@pytest.mark.parametrize(
    "more, is_same",
    [
        ({"editor_offload": None, "artifacts": 0.0, "stop": []}, True),  # new options that are off
        ({"seed": 2}, False),
        ({"artifacts": 0.5}, False),
    ],
)
def test_samples_are_named_by_what_decides_them(more, is_same):
    options, summary = {"maker": "negclip", "llm": "world/oracle", "seed": 1}, {"samples": 3}
    assert (name_of_samples(options | more, summary) == name_of_samples(options, summary)) == is_same
    assert name_of_samples(options, {"samples": 4}) != name_of_samples(options, summary)


def test_samples_are_made_anew_when_the_words_change_that_ask_for_them(monkeypatch):
    before = {name: wording_digest(maker) for name, maker in MAKERS.items()}
    monkeypatch.setattr(prompts, "DRAW", "Paint:")
    changed = {name for name, maker in MAKERS.items() if wording_digest(maker) != before[name]}
    assert changed == {"stablerep", "tripletclip"}
    assert len({before[name] for name in ("laclip", "sugarcrepe", "alia", "coco-cf")}) == 4  # other prompts
