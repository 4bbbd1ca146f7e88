"""Begin with what others have paid for.

In:  folders of other syntheses, or of a study's products.
Out: a new folder with their answers and candidate images, so that what several ask for is paid once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from repair_hf.llm.journal import shards

INHERITED = "-inherited-"  # in the name of a journal that was copied from elsewhere


def inherit(sources: Iterable[Path], folder: Path, *, images: bool = True) -> bool:
    """Let a new folder begin with the answers and the images of others, and say whether it does.

    Args:
        sources: The others; one that never asked anything is passed over. What they have inherited themselves is taken where it was
            paid.
        folder: The new one, left alone if it is begun.
        images: Images too.
    """
    sources = [source for source in sources if any(not is_inherited(path) for path in shards(source))]
    if not sources or folder.exists():
        return False
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for kind in ("journal", "images") if images else ("journal",):
        paths = [path for source in sources for path in shards(source, kind) if not is_inherited(path)]
        for number, path in enumerate(paths):
            shutil.copyfile(path, draft / f"{kind}{INHERITED}{number}.jsonl")
    for source in sources if images else ():
        if (source / "candidates").is_dir():
            shutil.copytree(source / "candidates", draft / "candidates", copy_function=_link, dirs_exist_ok=True)
    draft.rename(folder)
    return True


def is_inherited(journal: Path) -> bool:
    """Whether a journal was copied from elsewhere."""
    return INHERITED in journal.name


def _link(source: str, target: str) -> None:
    if os.path.exists(target):  # another source has the same image
        return
    try:
        os.link(source, target)
    except OSError:  # on another disk, or one that knows no links
        shutil.copyfile(source, target)
