"""Run `repair-hf study` in this process, look at what it wrote, and name what makes its data."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from repair_hf.cli.main import main
from repair_hf.study.making import Maker
from repair_hf.study.methods import METHODS


def load_makers() -> dict[str, Maker]:
    """Return the makers of all baselines by name."""
    sources = [source for method in METHODS.values() for source in method.sources.values()]
    return {source.name: source for source in sources if isinstance(source, Maker)}


def study(*words: str) -> str:
    """Run the command and return what it printed."""
    with redirect_stdout(StringIO()) as shown:
        assert main(["study", *words]) == 0
    return shown.getvalue()


def stamps(folder: Path) -> dict[Path, int]:
    """Return when the rows, the answers and the data of methods were written."""
    found = [*folder.glob("rows/*"), *folder.glob("[!c]*/*/summary.json"), *folder.glob("*/*/*.arrow")]  # no `cells`
    return {path: path.stat().st_mtime_ns for path in [*found, *folder.glob("candidates/*/*.png")]}
