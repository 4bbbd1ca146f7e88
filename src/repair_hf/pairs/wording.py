"""The wording of captions, without what does not change its meaning."""

from __future__ import annotations

import unicodedata

_PLAIN_QUOTES = str.maketrans("‘’“”", "''\"\"")
_ENDINGS = " .,;:!?…。．，、；：！？؟،؛۔।"  # also Chinese, Japanese, Arabic, Urdu and Hindi ones


def bare_caption(caption: str) -> str:
    """Normalize a caption's case, spacing, final punctuation, encoding of accents and form of apostrophes."""
    plain = unicodedata.normalize("NFC", caption).translate(_PLAIN_QUOTES).casefold()
    return " ".join(plain.split()).rstrip(_ENDINGS)
