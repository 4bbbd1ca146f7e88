"""Which releases the constraints name, and whether today's are those."""

from importlib.metadata import version
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def pinned(file: str) -> dict[str, str]:
    """Return the release of each package in a file of constraints."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(name): pin for name, _, pin in (line.partition("==") for line in lines) if pin}


def are_pinned(*packages: str) -> bool:
    """Return whether some installed packages are those of `constraints.txt`."""
    pins = pinned("constraints.txt")
    return all(version(package).partition("+")[0] == pins[package] for package in packages)
