"""Write the captions of ARO's order tests (Yuksekgonul et al., 2023) for some pairs, once; `evaluate` reads the file.

    python benchmarks/aro_order.py --pairs data/coco/dataset_coco.json --image-folder data/coco --benchmark coco \\
        --split test --output runs/coco_order.jsonl
    repair-hf evaluate ... --compositional order=runs/coco_order.jsonl

Each caption, with each seed, is a row of five captions:

| caption | what is shuffled | by |
|---|---|---|
| 0 | nothing: the true caption | |
| 1 | nouns among nouns, adjectives among adjectives | NumPy's generator |
| 2 | all other words | NumPy's generator |
| 3 | the words within each run of three | Python's generator |
| 4 | the runs of three | Python's generator |

All five are then normalized as the authors do. The shuffles are those of the authors for the same seed and order of
captions. Two differences from their code: captions have no outer white space, and NLTK's tokenizer takes a caption as
one sentence, so captions of several sentences keep their inner full stops on the words.

It needs `pip install 'repair-hf[aro]'` and a model of spaCy: `python -m spacy download en_core_web_sm`.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from repair_hf.pairs.dataset import Pairs, load_wanted
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.options import Bounded, PairsOptions, UserError, need, opt
from repair_hf.runtime.progress import Progress
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.study.words import ADJECTIVES, MODEL, NOUNS, load_parser

RUN = 3  # words
MAX_WORDS = 30
MARKS = re.compile(r"[.!\"()*#:;~]")


@dataclass
class OrderOptions(Bounded):
    output: str = need("File to write, JSON Lines.")
    spacy_model: str = opt(MODEL, "spaCy pipeline that tags the words: a name, a folder, or world for the toy world.")
    seeds: list[int] = opt([1], "Seeds of the shuffles; ARO's authors average over five.")


def main() -> None:
    """Write the rows of all captions, seed by seed."""
    try:
        pairs_options, options = parse((PairsOptions, OrderOptions), sys.argv[1:], "aro_order.py")
        rows = list(order_rows(load_wanted(pairs_options), load_parser(options.spacy_model), seeds=options.seeds))
    except UserError as error:
        sys.exit(f"error: {error}")
    Path(options.output).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(options.output), "".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows):,} cases of {len(options.seeds)} seeds -> {options.output}")


def order_rows(pairs: Pairs, parser: Any, seeds: Sequence[int] = (1,)) -> Iterator[dict[str, Any]]:
    """Yield a row for each caption with each seed; the parser tags the words."""
    texts, image_ids = pairs.captions["caption"][:], pairs.images["image_id"][:]
    caption_ids = pairs.captions["caption_id"][:]
    bar = Progress(parser.pipe(texts), "Parsing captions", total=len(texts), unit=" captions")
    documents = [(np.array([token.text for token in document]), kinds_of(document)) for document in bar]
    tokenize = load_tokenizer()
    tokens = [tokenize(text) for text in texts]
    for seed in seeds:
        numpy_rng, python_rng = np.random.RandomState(seed), random.Random(seed)
        for row, text in enumerate(texts):
            shuffled = (
                *shuffle_by_kind(*documents[row], numpy_rng),
                *shuffle_runs(tokens[row], python_rng),
            )
            yield {
                "caption_id": caption_ids[row],
                "image_id": image_ids[pairs.caption_image[row]],
                "seed": seed,
                "captions": [normalize(caption) for caption in (text, *shuffled)],
            }


def shuffle_by_kind(words: np.ndarray, kinds: np.ndarray, rng: np.random.RandomState) -> tuple[str, str]:
    """Shuffle nouns and adjectives, each among themselves; and shuffle all other words.

    The (W,) kinds are `noun`, `adjective` or `other`; the orders are drawn in this sequence.
    """
    named, others = words.copy(), words.copy()
    for kind in ("noun", "adjective"):
        named[kinds == kind] = rng.permutation(words[kinds == kind])
    others[kinds == "other"] = rng.permutation(words[kinds == "other"])
    return " ".join(named), " ".join(others)


def shuffle_runs(words: Sequence[str], rng: random.Random) -> tuple[str, str]:
    """Shuffle the words within each run of three; and shuffle the runs. The last run may be shorter."""
    runs = [list(words[start : start + RUN]) for start in range(0, len(words), RUN)]
    within = [run.copy() for run in runs]
    for run in within:
        rng.shuffle(run)
    rng.shuffle(runs)
    return " ".join(chain(*within)), " ".join(chain(*runs))


def normalize(caption: str) -> str:
    """Lower the case, remove punctuation and repeated spaces, and keep at most thirty words."""
    text = re.sub(r"\s{2,}", " ", MARKS.sub(" ", caption.lower())).strip(" ")
    return " ".join(text.split(" ")[:MAX_WORDS])


def kinds_of(document: Any) -> np.ndarray:
    tags = [token.tag_ for token in document]
    return np.array(["noun" if tag in NOUNS else "adjective" if tag in ADJECTIVES else "other" for tag in tags])


def load_tokenizer() -> Callable[[str], list[str]]:
    """Load NLTK's word tokenizer for one sentence: `it's red.` is `it`, `'s`, `red`, `.`; it needs no data files."""
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ModuleNotFoundError as error:
        raise UserError("NLTK is not installed: pip install 'repair-hf[aro]'.") from error
    return NLTKWordTokenizer().tokenize


if __name__ == "__main__":
    main()
