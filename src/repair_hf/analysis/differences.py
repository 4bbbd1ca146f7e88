"""What an edit changed in a caption.

In:  a text before and after.
Out: the words of both, in runs that are told to be the same, taken out or put in: in one row, or side by side.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Iterator
from typing import Literal

Run = tuple[Literal["same", "out", "in"], str]


def word_diff(before: str, after: str) -> list[Run]:
    """Both texts in one row: what stays as `after` has it, what goes, what comes.

    Words that differ in case or punctuation alone are the same: an editor that sets a full stop has changed nothing that a picture shows.

    Args:
        before: A text; any white space parts its words.
        after: The same, edited.
    """
    runs = []
    for is_same, old, new in _aligned(before, after):
        runs += [("same", new)] if is_same else [("out", old), ("in", new)]
    return _with_words(runs)


def both_sides(before: str, after: str) -> tuple[list[Run], list[Run]]:
    """Each text whole, for itself: the first as what stays and what goes, the second as what stays and what comes."""
    runs = list(_aligned(before, after))
    left = [("same" if is_same else "out", old) for is_same, old, _ in runs]
    right = [("same" if is_same else "in", new) for is_same, _, new in runs]
    return _with_words(left), _with_words(right)


def _aligned(before: str, after: str) -> Iterator[tuple[bool, str, str]]:
    old, new = before.split(), after.split()
    matcher = difflib.SequenceMatcher(None, [_bare(w) for w in old], [_bare(w) for w in new], autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        yield kind == "equal", " ".join(old[i:j]), " ".join(new[k:m])


def _bare(word: str) -> str:
    return word.lower().strip(string.punctuation) or word


def _with_words(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run[1]]
