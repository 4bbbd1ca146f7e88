"""`repair-hf env`: what a bug report must say.

In:  nothing.
Out: versions, devices, folders and which keys are set (their names, never their values), on stdout.
"""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table

from repair_hf.runtime.run_folder import versions
from repair_hf.cli.subcommands import suggest

OPTIONS = ()
EPILOG = "example:\n  repair-hf env"


def run() -> None:
    """Print versions and devices."""
    import torch
    from huggingface_hub.constants import HF_HOME

    found = versions()
    rows = {key: found[key] for key in ("python", "platform", "commit")} | found["packages"]
    rows["cuda"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    rows["cpu"] = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads for torch"
    rows["HF_HOME"] = HF_HOME
    rows["keys set"] = (
        ", ".join(sorted(name for name in os.environ if name.endswith(("_API_KEY", "HF_TOKEN")))) or "none"
    )
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, str(value))
    Console().print(table)
    suggest("demo")
