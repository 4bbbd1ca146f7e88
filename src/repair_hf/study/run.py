"""Run a study, from Python or from `repair-hf study`: choose methods, check what they need, run, write the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from repair_hf.analysis.report import Finding
from repair_hf.evaluation.words import load_parser
from repair_hf.runtime.options import UserError, did_you_mean, fill
from repair_hf.study.loop import Study
from repair_hf.study.methods.method import Baseline
from repair_hf.study.methods.registry import check_installed
from repair_hf.study.options import StudyEditorOptions, StudyLLMOptions, StudyOptions, StudyPairsOptions
from repair_hf.study.setting import Setting, settle
from repair_hf.study.tables import tables_of, write_page
from repair_hf.synthesis.models import check_editor, check_llm

ON_RECORDS = ["repair", "repair-paper"]  # beside plain training


def run_study(*, output: str | Path, **options: Any) -> list[Finding]:
    """Compare methods on the same data, retriever, LLM, editor and budget, as `repair-hf study` does.

    Args:
        output: Folder of the study; the same call resumes.
        options: Other options of `repair-hf study`, such as `size="tiny"` or `methods=["repair"]`.

    Returns:
        The tables of `study.md`.

    Raises:
        UserError: If an option is not valid, or a method needs an option that is not set.
        RunStopped: If a ceiling is reached or a provider is down.
    """
    kinds = (StudyOptions, StudyPairsOptions, StudyLLMOptions, StudyEditorOptions)
    setting = settle(*fill(kinds, options | {"output": str(output)}, "run_study"))
    return run_cells(setting, chosen(setting))


def run_cells(setting: Setting, wanted: list[str], tell: Callable[[str], None] = lambda line: None) -> list[Finding]:
    """Run what is missing, unless the options want the tables alone; write them, and return them."""
    logging.getLogger("repair_hf.training").setLevel(logging.WARNING)  # a line for each cell is enough
    study = Study(setting, wanted, tell)
    if not setting.options.table:
        check(setting, wanted)
        study.run()
    sections = tables_of(study.plan)
    write_page(sections, setting)
    return sections


def chosen(setting: Setting) -> list[str]:
    """Return the methods of the study: those that are named, or all whose required options are set."""
    names = setting.options.methods or (ON_RECORDS if setting.options.records else [])
    lacks = lacking(setting)
    for name in names:
        if name not in setting.methods:
            meant = did_you_mean([name], setting.methods)
            raise UserError(f"`methods` has {name!r}, which is unknown. {meant}See `repair-hf study --list`.")
        if name in lacks:
            raise UserError(f"The method `{name}` needs {in_words(lacks[name])}; set it, or leave the method out.")
    return list(names) or [name for name in setting.methods if name not in lacks]


def lacking(setting: Setting) -> dict[str, list[str]]:
    """Return the methods that need options which are not set, and these."""
    found = {
        name: sorted({lack for data in setting.datasets.values() for lack in setting.lacks(method, data)})
        for name, method in setting.methods.items()
    }
    return {name: options for name, options in found.items() if options}


def in_words(options: Sequence[str]) -> str:
    """Return the names of some options as part of a sentence."""
    return " and ".join(f"`{option}`" for option in options)


def check(setting: Setting, wanted: Sequence[str]) -> None:
    """Report a missing or damaged split, model or package before anything is paid, also in a dry run."""
    methods = [setting.methods[name] for name in wanted]
    check_installed(methods)
    options = setting.options
    for data in setting.datasets.values():
        if data.options.records:
            data.records  # noqa: B018  # loads and checks them
        if data.world is None:
            for split in (options.test_split, *([options.validation_split] if options.tune else [])):
                data.held_out(split)
        asking = [method for method in methods if not setting.takes_records(method, data)]
        if any("spacy_model" in method.means for method in asking) and setting.spacy_model != "world":
            load_parser(setting.spacy_model, noun_chunks=True)
        for method in asking:
            models = setting.models_of(method)
            if "llm" in method.means:
                check_llm(models.llm)
            if "editor" in method.means:
                check_editor(models.editor, from_text=isinstance(method, Baseline) and method.draws)
