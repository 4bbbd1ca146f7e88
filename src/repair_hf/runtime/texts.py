"""Parse JSON and YAML: captions, benchmarks, recipes, answers, and what a stage left in its folder.

The parsers raise RecursionError for deep nesting, and accept halves of surrogate pairs, which no file can hold.
"""

from __future__ import annotations

import json
import math
import re
from itertools import chain
from typing import Any

MAX_VALUES = 100_000  # of YAML, whose lists may repeat one another by name
MAX_DEPTH = 100  # lists and objects in one another; whoever handles the value may use recursion
_TOO_DEEP = f"its lists and objects are nested more than {MAX_DEPTH} deep"
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_YAML_FAULTS = (ValueError, RecursionError, LookupError, AttributeError, TypeError, OverflowError)
_decoder = json.JSONDecoder()


class UnreadableText(ValueError):
    """A text that is not JSON or YAML, or that cannot be used; the message says why."""


def parse_json(text: bytes | str) -> Any:
    """Parse a JSON document.

    Raises:
        UnreadableText: If it is not JSON, in no known encoding, nested too deeply, or holds half of a surrogate pair.
    """
    try:
        text = text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text.removeprefix("\ufeff")
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from error
    _check(value, texts=_ESCAPED_HALF.search(text) is not None or _HALF_PAIR.search(text) is not None)
    return value


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

    class OnceEach(yaml.SafeLoader):
        """Of two values of one key the parser would take the last, and say nothing."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            names = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := [value for place, (tag, value) in enumerate(names) if (tag, value) in names[:place]]:
                raise UnreadableText(f"the key `{twice[0]}` stands there twice")
            return super().construct_mapping(node, deep)

    try:
        value = yaml.load(text.decode() if isinstance(text, bytes) else text, OnceEach)
    except (yaml.YAMLError, *_YAML_FAULTS) as error:
        raise _unreadable(error) from error
    _check(value, texts=True, most=MAX_VALUES)
    return value


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
