import argparse
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pytest
from transformers.hf_argparser import HfArgumentParser

from repair_hf.runtime.command_line import parse
from repair_hf.runtime.flags import add_arguments
from repair_hf.runtime.options import Bounded, opt
from repair_hf.training.config import RepairConfig


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Base(Bounded):
    width: int = 3
    name: str | None = None


@dataclass
class Options(Base):
    _argument_group_name = "kitchen"

    share: float = opt(0.5, "100% of it.")
    is_on: bool = True
    is_off: bool = False
    unsure: bool | None = None
    color: Color | str = "red"
    side: Literal["left", "right"] = "left"
    sizes: list[int] = field(default_factory=lambda: [1])
    words: list[str] | None = None
    extra: dict[str, Any] | None = None
    either: dict | str | None = None
    many: None | str | list[str] = None
    raw: bytes | None = None
    story: str = opt("a", "word " * 60)


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
        (["--color", "blue"], "color", "blue"),
        (["--side", "right"], "side", "right"),
        (["--sizes", "2", "3"], "sizes", [2, 3]),
        (["--words", "2", "3"], "words", ["2", "3"]),
        (["--extra", '{"a": 1}'], "extra", {"a": 1}),
        (["--either", '{"a": 1}'], "either", '{"a": 1}'),
        (["--many", "all"], "many", "all"),
    ],
)
def test_a_word_gets_the_type_of_its_field(words, name, value):
    assert parse((Options,), words, "cook") == (Options(**{name: value}),)


def test_training_arguments_are_read_as_by_transformers():
    """The same words make the same configuration."""
    words = """
        --learning-rate 1e-4 --num-train-epochs 2 --max-steps 7 --use-cpu --logging-steps 0.5 --seed 3 --bf16 false
        --eval-strategy steps --save-strategy no --lr-scheduler-type linear --warmup-steps 3 --optim adamw_torch
        --report-to none --max-grad-norm 0.25 --per-device-train-batch-size 4 --dataloader-num-workers 0
    """.split()
    words += ["--lr-scheduler-kwargs", '{"num_cycles": 1}']
    theirs, ours = (
        HfArgumentParser(RepairConfig).parse_args_into_dataclasses(words),
        parse((RepairConfig,), words, "x"),
    )
    assert theirs[0].to_dict() == ours[0].to_dict()
    parser = argparse.ArgumentParser()
    names = {action.dest for action in add_arguments(parser, RepairConfig)}
    known = {action.dest for action in HfArgumentParser(RepairConfig)._actions} - {"help"}
    assert known - names == {"parallelism_config", "output_dir"}  # an object, and `--output`


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_help_fits_the_terminal_and_shows_a_class_before_its_bases(monkeypatch, columns, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit):
        parse((Options,), ["--help"], "cook")
    shown = capsys.readouterr().out
    flags = shown[shown.index("kitchen:") : shown.index("every command:")]
    widest = max(map(len, flags.splitlines()))
    assert min(columns, 119) - 8 < widest <= min(columns, 119)
    assert shown.index("kitchen:") < shown.index("--share FLOAT") < shown.index("Base:") < shown.index("--width INT")
    assert "100% of it. (default: 0.5)" in " ".join(shown.split())
    assert "--is-on, --no-is-on" in shown and "--extra JSON" in shown and "--raw" not in shown
