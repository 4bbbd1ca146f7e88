"""Parse JSON and YAML: captions, benchmarks, recipes, answers, and what a stage left in its folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

TOO_DEEP = "its lists and objects are nested too deeply"
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")  # perhaps a surrogate without its partner


class UnreadableText(ValueError):
    """A text that is not JSON or YAML, or that cannot be used; the message says why."""


def parse_json(text: bytes | str) -> Any:
    """Parse a JSON document.

    Raises:
        UnreadableText: If it is not JSON, in no known encoding, or holds a character that no file can hold.
    """
    try:
        text = text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text.removeprefix("\ufeff")
        value = json.loads(text)
        if ESCAPED_HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # raises an error for half of a pair
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from error
    return value


def parse_yaml(text: bytes | str) -> Any:
    """Parse a YAML document of plain values.

    Raises:
        UnreadableText: If it is not YAML, repeats a key, or repeats a value by an alias: a few lines of aliases can
            stand for billions of values.
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
        return yaml.load(text, PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError, LookupError, AttributeError, TypeError) as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> UnreadableText:
    if isinstance(error, RecursionError):
        return UnreadableText(TOO_DEEP)
    return UnreadableText(" ".join(str(error).split())[:300].rstrip(".") or type(error).__name__)
