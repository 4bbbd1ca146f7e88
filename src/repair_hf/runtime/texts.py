"""Parse JSON and YAML: captions, benchmarks, recipes, answers, and what a stage left in its folder.

The parsers raise RecursionError for deep nesting, and accept halves of surrogate pairs, which no file can hold.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import chain
from typing import Any

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
        UnreadableText: If it is not YAML, nested too deeply, holds half of a surrogate pair, repeats a key, or repeats
            a value by an alias: a few lines of aliases can stand for billions of values.
    """
    import yaml  # here, because a help needs no YAML

    class PlainLoader(yaml.SafeLoader):
        """Without aliases. Of two values of one key the parser would take the last, and say nothing."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise UnreadableText(f"it repeats a value by the alias `*{self.peek_event().anchor}`; write it out")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            keys = Counter((key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if repeated := [value for (_, value), count in keys.items() if count > 1]:
                raise UnreadableText(f"the key `{repeated[0]}` stands there twice")
            return super().construct_mapping(node, deep)

    try:
        value = yaml.load(text.decode() if isinstance(text, bytes) else text, PlainLoader)
    except (yaml.YAMLError, *_YAML_FAULTS) as error:
        raise _unreadable(error) from error
    _check(value, texts=True)
    return value


def _unreadable(error: Exception) -> UnreadableText:
    if isinstance(error, RecursionError):
        return UnreadableText(_TOO_DEEP)
    return UnreadableText(" ".join(str(error).split())[:300].rstrip(".") or type(error).__name__)


def _check(value: Any, *, texts: bool) -> None:
    """Check the depth and, if wanted, the `texts`."""
    level: list[Any] = [[value]]
    for _ in range(MAX_DEPTH + 1):
        members = [each for one in level for each in (chain(one, one.values()) if isinstance(one, dict) else one)]
        if texts and (halves := [each for each in members if isinstance(each, str) and _HALF_PAIR.search(each)]):
            raise UnreadableText(f"{ascii(halves[0])[:80]} in it holds half of a surrogate pair")
        level = [each for each in members if isinstance(each, dict | list)]
        if not level:
            return
    raise UnreadableText(_TOO_DEEP)
