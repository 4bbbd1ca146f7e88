"""`repair-hf annotate`: serve a page on which people judge failures (`qc`) or edits (`edits`), by keyboard.

The sample and one file of answers per annotator go to `people/qc` or `people/edits` in the run's folder of records.
"""

from __future__ import annotations

import shlex
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from repair_hf.analysis.options import SourceOptions
from repair_hf.runtime.options import Bounded, UserError, need, opt

EPILOG = """examples:
  repair-hf annotate qc runs/demo
  repair-hf annotate edits runs/demo --size 100 --port 8000

Open the printed address, enter a name of your own, and answer with the keys that the page shows. Answers are saved at
once, so you can stop at any time. Then: repair-hf analyze runs/demo"""


@dataclass
class AnnotateOptions(Bounded):
    run: str = need("Folder of `repair-hf demo` or `synthesize`, or one round's folder of records.")
    size: int = opt(
        200, "Sample size: accepted failures and as many rejected ones, or records of each direction.", least=1
    )
    host: str = opt("127.0.0.1", "Address to listen on; 0.0.0.0 accepts everyone who can reach this machine.")
    port: int = opt(7860, "Port to listen on.", least=0, most=65535)
    dry_run: bool = opt(False, "Draw the sample, then stop.")


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


def _annotate(task: Literal["qc", "edits"], options: AnnotateOptions, source: SourceOptions) -> None:
    from repair_hf.analysis.run_data import gather
    from repair_hf.records.answers import PEOPLE
    from repair_hf.runtime.locks import one_writer

    material = gather(options.run)
    if len(material.folders) != 1:
        found = ", ".join(map(str, material.folders)) or "none"
        raise UserError(f"give one folder of records at a time; {options.run} holds {found}.")
    here = material.folders[0] / PEOPLE / task
    with one_writer(here):
        _judge(material, here, options, source)


def _judge(material: Any, here: Path, options: AnnotateOptions, source: SourceOptions) -> None:
    """Draw the sample, and serve its page."""
    from repair_hf.analysis.people.sampling import lay_out

    task: Any = here.name
    count = lay_out(material, task, size=options.size, seed=0, pairs=source.pairs)
    print(f"annotate {task}   {count:,} items   -> {here}")
    if options.dry_run:
        return
    from repair_hf.analysis.people.page import Judging
    from repair_hf.runtime.files import intact

    try:
        with intact(here / "shown" / "items.jsonl", "Move its folder away, and annotate again"):
            server = Judging(here, options.host, options.port, own_names(options.host))
    except OSError as error:
        raise UserError(f"cannot listen on --host {options.host} --port {options.port}: {error}") from error
    print(
        f"http://{options.host}:{server.server_port}/?annotator=YOUR-NAME   (ctrl-c ends)\n"
        f"then: repair-hf analyze {shlex.quote(options.run)}",
        flush=True,
    )
    with server:
        server.serve_forever()


def own_names(host: str) -> list[str]:
    """Return the names that requests to a server on an address may ask for.

    A page elsewhere can point a name of its own at this machine and read what is served (DNS rebinding). Its requests
    still carry that name.
    """
    names = {host, "127.0.0.1", "localhost", "::1"}
    if host in ("0.0.0.0", "::"):
        addresses = (each.address for some in psutil.net_if_addrs().values() for each in some)
        names |= {socket.gethostname(), socket.getfqdn(), *(address.partition("%")[0] for address in addresses)}
    return sorted(names)
