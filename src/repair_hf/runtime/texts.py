"""Read JSON and YAML that others wrote: captions, benchmarks, recipes, answers, and what a stage left in its folder.

The parsers raise RecursionError for deep nesting, and accept halves of surrogate pairs, which no file can hold.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from repair_hf.runtime.options import UserError

MAX_VALUES = 100_000  # of YAML, whose lists may repeat one another by name
MAX_DEPTH = 100  # lists and objects in one another; whoever handles the value may use recursion
_TOO_DEEP = f"its lists and objects are nested more than {MAX_DEPTH} deep"
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_YAML_FAULTS = (ValueError, RecursionError, LookupError, AttributeError, TypeError, OverflowError)
_decoder = json.JSONDecoder()


class UnreadableText(ValueError):
    """A text that is not JSON or YAML, or that cannot be used; the message says why."""


def parse_json(text: bytes | str, *, mend: Callable[[str], Any] | None = None) -> Any:
    """Parse a JSON document; `mend` gives what replaces a text with half of a surrogate pair, by default an error.

    Raises:
        UnreadableText: If it is not JSON, in no known encoding, or nested too deeply.
    """
    try:
        text = text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text.removeprefix("\ufeff")
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from error
    has_half_pairs = (
        _ESCAPED_HALF.search(text) is not None or not text.isascii() and _HALF_PAIR.search(text) is not None
    )
    _check(value, texts=has_half_pairs and mend is None)
    return _mended(value, mend) if has_half_pairs and mend is not None else value


def end_of_json(text: str, start: int) -> int:
    """Return where the JSON value that begins at `start` ends.

    Raises:
        UnreadableText: If no whole value begins there, or if it is nested too deeply.
    """
    try:
        return _decoder.raw_decode(text, start)[1]
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from error


def parse_yaml(text: bytes | str) -> Any:
    """Parse a YAML document of plain values.

    Raises:
        UnreadableText: If it is not YAML, nested too deeply, or holds half of a surrogate pair.
    """
    import yaml  # here, because a help needs no YAML

    try:
        value = yaml.safe_load(text.decode() if isinstance(text, bytes) else text)
    except (yaml.YAMLError, *_YAML_FAULTS) as error:
        raise _unreadable(error) from error
    _check(value, texts=True, most=MAX_VALUES)
    return value


def read_json(path: str | Path, *, mend: Callable[[str], Any] | None = None) -> Any:
    """Read a JSON file; see `parse_json`.

    Raises:
        UserError: If it cannot be read, or is not JSON.
        FileNotFoundError: If it does not exist.
    """
    try:
        return parse_json(_content(path), mend=mend)
    except UnreadableText as error:
        raise UserError(f"{path} is not JSON: {error}. Repair the file, or make it again.") from error


def read_yaml(path: str | Path) -> Any:
    """Read a YAML file; an empty one is None. Errors are those of `read_json`."""
    try:
        return parse_yaml(_content(path))
    except UnreadableText as error:
        raise UserError(f"{path} is not valid YAML: {error}. Repair the file, or make it again.") from error


def read_json_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each line of a JSON Lines file, from 1; `UnreadableText` in place of a bad one.

    Raises:
        UserError, FileNotFoundError: As `read_json`.
    """
    for number, line in enumerate(_content(path).split(b"\n"), start=1):
        if line.strip():
            try:
                yield number, parse_json(line)
            except UnreadableText as error:
                yield number, error


def _content(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error


def _unreadable(error: Exception) -> UnreadableText:
    if isinstance(error, RecursionError):
        return UnreadableText(_TOO_DEEP)
    return UnreadableText(" ".join(str(error).split())[:300].rstrip(".") or type(error).__name__)


def _check(value: Any, *, texts: bool, most: float = math.inf) -> None:
    """Check depth and number of values and, if wanted, the `texts`. YAML can make a list its own member."""
    n_values = 0
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        members = [each for one in level for each in (chain(one, one.values()) if isinstance(one, dict) else one)]
        if texts and (halves := [each for each in members if isinstance(each, str) and _HALF_PAIR.search(each)]):
            raise UnreadableText(f"{ascii(halves[0])[:80]} in it holds half of a surrogate pair")
        if (n_values := n_values + len(members)) > most:
            raise UnreadableText(f"it holds more than {most:,} values")
        level = [each for each in members if isinstance(each, dict | list)]
        if not level:
            return
    raise UnreadableText(_TOO_DEEP)


def _mended(value: Any, mend: Callable[[str], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mended(each, mend) for key, each in value.items() if not _HALF_PAIR.search(key)}
    if isinstance(value, list):
        return [_mended(each, mend) for each in value]
    return mend(value) if isinstance(value, str) and _HALF_PAIR.search(value) else value
