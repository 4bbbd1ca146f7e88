"""Run `repair-hf study` in this process, look at what it wrote, and name what makes its data."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from repair_hf.cli.main import main
from repair_hf.study.methods.method import Maker
from repair_hf.study.methods.registry import load_methods


def load_makers() -> dict[str, Maker]:
    """Return the makers of all baselines by name."""
    parts = [part for method in load_methods().values() for part in method.parts.values()]
    return {part.name: part for part in parts if isinstance(part, Maker)}


def study(*words: str) -> str:
    """Run the command and return what it printed."""
    with redirect_stdout(StringIO()) as shown:
        assert main(["study", *words]) == 0
    return shown.getvalue()


def stamps(folder: Path) -> dict[Path, int]:
    """Return when the results, the answers and the data of methods were written."""
    found = [folder / "results.parquet", *folder.glob("*/*/summary.json"), *folder.glob("*/*/*.arrow")]
    return {path: path.stat().st_mtime_ns for path in [*found, *folder.glob("candidates/*/*.png")]}
