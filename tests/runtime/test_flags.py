import argparse
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pytest
from transformers.hf_argparser import HfArgumentParser

from repair_hf.runtime.flags import Help, add_arguments
from repair_hf.runtime.options import opt
from repair_hf.training.config import RepairConfig


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Knob:
    """Nothing that a word could name."""


@dataclass
class Base:
    width: int = 3
    name: str | None = None


@dataclass
class Options(Base):
    _argument_group_name = "kitchen"

    share: float = opt(0.5, "100% of it.")
    is_on: bool = True
    is_off: bool = False
    unsure: bool | None = None
    colour: Colour | str = "red"
    side: Literal["left", "right"] = "left"
    sizes: list[int] = field(default_factory=lambda: [1])
    words: list[str] | None = None
    extra: dict[str, Any] | None = None
    either: dict | str | None = None
    many: None | str | list[str] = None
    knob: Knob | None = None
    story: str = opt("a", "word " * 60)


def filled(*words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser(formatter_class=Help, exit_on_error=False)
    add_arguments(parser, Options)
    return vars(parser.parse_args(words))


@pytest.mark.parametrize(
    "words, name, value",
    [
        (["--width", "4"], "width", 4),
        (["--share=1e-4"], "share", 1e-4),
        (["--is-on", "false"], "is_on", False),
        (["--no-is-on"], "is_on", False),
        (["--no_is_on"], "is_on", False),
        (["--is-off"], "is_off", True),
        (["--unsure"], "unsure", True),
        (["--unsure", "no"], "unsure", False),
        (["--colour", "blue"], "colour", "blue"),
        (["--side", "right"], "side", "right"),
        (["--sizes", "2", "3"], "sizes", [2, 3]),
        (["--words", "2", "3"], "words", ["2", "3"]),
        (["--extra", '{"a": 1}'], "extra", {"a": 1}),
        (["--either", '{"a": 1}'], "either", '{"a": 1}'),
        (["--many", "all"], "many", "all"),
    ],
)
def test_a_word_gets_the_type_of_its_field(words, name, value):
    untouched = filled()
    assert filled(*words) == untouched | {name: value}
    assert untouched == {key: cell for key, cell in vars(Options()).items() if key != "knob"}


@pytest.mark.parametrize("words", [["--width", "x"], ["--is-on", "perhaps"], ["--side", "up"], ["--colour", "green"]])
def test_a_word_of_another_type_is_refused(words):
    with pytest.raises(argparse.ArgumentError):
        filled(*words)


# Fields of several types, of which HfArgumentParser takes the wrong one: their own defaults are strings.
OTHERWISE = {"debug", "include_num_input_tokens_seen"}


def test_training_arguments_are_read_as_by_transformers():
    """The same words fill the same values."""
    theirs, ours = HfArgumentParser(RepairConfig), argparse.ArgumentParser(formatter_class=Help)
    actions = add_arguments(ours, RepairConfig)
    before, after = (vars(parser.parse_args([])) for parser in (theirs, ours))
    assert set(before) - set(after) == {"parallelism_config", "output_dir"}  # an object, and `--output`
    names = set(after) - OTHERWISE
    assert {name: before[name] for name in names} == {name: after[name] for name in names}
    words, count = {"int": "3", "float": "0.25", "_truth": "false"}, 0
    for action in actions:
        if action.dest in names - {"liger_kernel_config"} and action.nargs != 0:
            word = next(iter(action.choices or ()), words.get(getattr(action.type, "__name__", ""), "word"))
            flags = [action.option_strings[0], str(word)]
            assert vars(theirs.parse_args(flags))[action.dest] == vars(ours.parse_args(flags))[action.dest], flags
            count += 1
    assert count > 90


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_fits_the_terminal_and_shows_a_class_before_its_bases(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = argparse.ArgumentParser(prog="cook", formatter_class=Help)
    add_arguments(parser, Options)
    shown = parser.format_help()
    widest = max(map(len, shown.splitlines()))
    assert min(columns, 119) - 8 < widest <= min(columns, 119)
    assert shown.index("kitchen:") < shown.index("--share FLOAT") < shown.index("Base:") < shown.index("--width INT")
    assert "100% of it. (default: 0.5)" in " ".join(shown.split())
    assert "--[no-]is-on" in shown and "--extra JSON" in shown
