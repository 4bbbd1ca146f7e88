"""`repair-hf annotate`: a page on which people judge failures (`qc`) or edits (`edits`), by keyboard.

In:  the folder of a run.
Out: `people/qc` or `people/edits` in its folder of records: what was drawn, and a file of answers per annotator.
"""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import dataclass

from repair_hf.runtime.options import PairsOptions, UserError, need, opt

EPILOG = """examples:
  repair-hf annotate qc runs/demo
  repair-hf annotate edits runs/demo --size 100 --port 8000

Open the address that is printed, say who you are, and answer with the keys that the page names. Everybody who judges uses a name of their
own. Stop and start as you like: answers are on disk as soon as they are given. Then: repair-hf agreement runs/demo"""


@dataclass
class AnnotateOptions:
    """Who is asked about what."""

    _argument_group_name = "annotate"

    run: str = need("Folder of `repair-hf demo` or `synthesize`, or one round's folder of records.")
    size: int = opt(200, "How many to draw: accepted and rejected failures each, or records of each direction.")
    seed: int = opt(0, "Another seed draws others.")
    host: str = opt("127.0.0.1", "Address to listen on; 0.0.0.0 lets everybody in who reaches this machine.")
    port: int = opt(7860, "Port to listen on.")
    space: str | None = opt(None, "Send the page to this Space of the Hub (private) instead of serving it here.")
    dry_run: bool = opt(False, "Draw the sample, then stop.")

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"`size` must be at least 1, got {self.size}.")


@dataclass
class SourceOptions(PairsOptions):
    """Where pictures are taken from that the records lack; by default what the run itself tells."""

    pairs: str | None = opt(
        None, "The pairs that the failures were mined from: folder, caption JSON or Hub dataset id."
    )


def judge_failures(options: AnnotateOptions, source: SourceOptions) -> None:
    """Judge failures: was the audit right to accept or reject them?"""
    _annotate("qc", options, source)


def judge_edits(options: AnnotateOptions, source: SourceOptions) -> None:
    """Judge edits: does what was made of a false positive form a valid hard contrast with it?"""
    _annotate("edits", options, source)


ACTIONS = {
    "qc": ((AnnotateOptions, SourceOptions), judge_failures),
    "edits": ((AnnotateOptions, SourceOptions), judge_edits),
}


def _annotate(task: str, options: AnnotateOptions, source: SourceOptions) -> None:
    from repair_hf.analysis.people.sampling import lay_out
    from repair_hf.analysis.run_data import gather
    from repair_hf.pairs.dataset import load_wanted
    from repair_hf.records.answers import PEOPLE

    if not options.dry_run and importlib.util.find_spec("gradio") is None:
        raise UserError("the page needs Gradio, which is not installed: pip install -e '.[ui]'")
    material = gather(options.run)
    if len(material.folders) != 1:
        found = ", ".join(map(str, material.folders)) or "none"
        raise UserError(
            f"people judge one folder of records at a time; {options.run} holds {found}. Give one of a synthesis."
        )
    folder = material.folders[0]
    pairs = material.pairs if source.pairs is None else lambda: load_wanted(source)
    count = lay_out(material, task, folder, size=options.size, seed=options.seed, pairs=pairs)
    here = folder / PEOPLE / task
    print(f"annotate {task}   {count:,} items   -> {here}")
    if options.dry_run:
        return
    if options.space is not None:
        from repair_hf.hub.push import push_space

        print(push_space(here, options.space).url)
        return
    from repair_hf.analysis.people.page import Sheet, serve

    print(
        f"http://{options.host}:{options.port}/?annotator=YOUR-NAME   (ctrl-c ends)\nthen: repair-hf agreement {shlex.quote(options.run)}",
        flush=True,
    )
    sheet = Sheet(here)
    try:
        serve(sheet, host=options.host, port=options.port)
    except OSError as error:  # Gradio's own, without a number
        raise UserError(f"--host {options.host} --port {options.port} cannot be listened on: {error}") from error
