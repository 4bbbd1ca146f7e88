"""`repair-hf annotate`: write a page on which people judge failures (`qc`) or edits (`edits`), by keyboard.

The page needs no server. It saves a file of judgements for `repair-hf analyze --judgements`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repair_hf.analysis.options import SourceOptions, html_file
from repair_hf.runtime.options import Bounded, need, opt

if TYPE_CHECKING:
    from repair_hf.analysis.people.judgements import Task

EPILOG = """examples:
  repair-hf annotate qc runs/demo
  repair-hf annotate edits runs/demo --size 100 --output judge.html

Open the page in a browser or mail it. Judge with the keys that it shows, and save the file. You can stop and go on in
the same browser. Then: repair-hf analyze runs/demo --judgements FILE ..."""


@dataclass
class AnnotateOptions(Bounded):
    run: str = need("Folder of `repair-hf demo`, `run` or `synthesize`, or records on the Hub.")
    output: str | None = opt(
        None, "Page to write, an .html file. Default: `judge-qc.html` or `judge-edits.html` in it."
    )
    size: int = opt(
        200, "Sample size: accepted failures and as many rejected ones, or records of each direction.", least=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        html_file(self.output)


def judge_failures(options: AnnotateOptions, source: SourceOptions) -> None:
    """Judge failures: did the audit accept or reject them rightly?"""
    _annotate("qc", options, source)


def judge_edits(options: AnnotateOptions, source: SourceOptions) -> None:
    """Judge edits: is an edit a valid hard contrast to its false positive?"""
    _annotate("edits", options, source)


ACTIONS = {
    "qc": ((AnnotateOptions, SourceOptions), judge_failures),
    "edits": ((AnnotateOptions, SourceOptions), judge_edits),
}


def _annotate(task: Task, options: AnnotateOptions, source: SourceOptions) -> None:
    from repair_hf.analysis.people.page import annotate

    page = annotate(options.run, task, options.output, size=options.size, pairs=source.pairs)
    print(f"annotate {task}   {page.n_items:,} items, {page.path.stat().st_size / 1e6:,.1f} MB   -> {page.path}")
    print(f"Open it in a browser. Then: repair-hf analyze {shlex.quote(options.run)} --judgements FILE ...")
