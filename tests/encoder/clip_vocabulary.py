"""CLIP's tokenizer, built from its list of merges, which is not shipped; an environment variable names the file."""

import gzip
import os
from pathlib import Path

from transformers import CLIPTokenizer

VOCABULARY = os.environ.get("REPAIR_HF_CLIP_BPE")


def real_tokenizer() -> CLIPTokenizer:
    """CLIP's vocabulary from its list of merges, in the order in which OpenAI built it."""
    lines = gzip.decompress(Path(VOCABULARY).read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    merges = [tuple(line.split()) for line in lines]
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [chr(code) for code in shown] + [chr(256 + place) for place in range(256 - len(shown))]
    words = [*letters, *(letter + "</w>" for letter in letters), *("".join(pair) for pair in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: row for row, word in enumerate(words)}, merges=merges, model_max_length=77)
