"""`repair-hf env`: print versions, devices, folders and the names (never the values) of API keys, for a bug report."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table

from repair_hf.runtime.run_folder import versions

OPTIONS = ()
EPILOG = "example:\n  repair-hf env"


def run() -> None:
    import torch
    from huggingface_hub.constants import HF_HOME  # seen with huggingface_hub 1.33

    installed = versions()
    rows = {key: installed[key] for key in ("python", "platform", "commit")} | installed["packages"]
    rows["cuda"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    rows["cpu"] = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads for torch"
    rows["HF_HOME"] = HF_HOME
    keys = sorted(name for name in os.environ if name.endswith(("_API_KEY", "HF_TOKEN")))
    rows["keys set"] = ", ".join(keys) or "none"
    table = Table(show_header=False, box=None)
    for name, value in rows.items():
        table.add_row(name, str(value))
    Console().print(table)
