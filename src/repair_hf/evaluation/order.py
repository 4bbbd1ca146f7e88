"""ARO's order tests (Yuksekgonul et al., 2023): a caption against four shuffles of its own words.

Each caption, with each seed, is one case of five captions about the caption's image:

| caption | what is shuffled | by |
|---|---|---|
| 0 | nothing: the true caption | |
| 1 | nouns among nouns, adjectives among adjectives | NumPy's generator |
| 2 | all other words | NumPy's generator |
| 3 | the words within each run of three | Python's generator |
| 4 | the runs of three | Python's generator |

All five are then normalized as the authors do. The shuffles are those of the authors for the same seed and order of
captions. A shuffle may leave a caption unchanged; a model can then only reach a tie.

| key | meaning |
|---|---|
| `coco_order_P@1`, `flickr30k_order_P@1` | share of cases in which the true caption beats all four shuffles |
| `order_P@1` | the same for other data |
| `..._P@1_ties_right` | the authors' metric: a tie counts as right |
| `..._P@1_seed_1`, ... | that of each of several seeds; the authors advise to average over five |
| `..._n_unchanged` | shuffles that left the caption unchanged |

Two differences from the authors' code: captions have no outer white space, and NLTK's tokenizer takes a caption as one
sentence. Captions of several sentences keep their inner full stops on the words.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from repair_hf.evaluation.cases import Case, Cases, Metric, first_is_right
from repair_hf.evaluation.words import ADJECTIVES, NOUNS
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.progress import Progress

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc

RUN = 3  # words
MAX_WORDS = 30

_MARKS = re.compile(r"[.!\"()*#:;~]")


def load_order(
    pairs: Pairs,
    parser: Language,
    tokenize: Callable[[str], list[str]],
    *,
    benchmark: str = "order",
    seeds: Sequence[int] = (1,),
) -> Cases:
    """Make the cases of some pairs.

    The parser tags the words. The tokenizer makes the words of the runs; the authors use NLTK's.
    `benchmark` is `coco_order` or `flickr30k_order` if the pairs are that benchmark's test split.

    Example:
        >>> cases = load_order(pairs, load_parser(), load_tokenizer())
        >>> [cases.captions[row] for row in cases.caption[0]][:2]
        ['a red ball on a wooden table', 'a wooden table on a red ball']
    """
    texts, image_ids = pairs.captions["caption"][:], pairs.images["image_id"][:]
    bar = Progress(parser.pipe(texts), "Parsing captions", total=len(texts), unit=" captions")
    documents = [(np.array([token.text for token in document]), _kinds(document)) for document in bar]
    runs = [tokenize(text) for text in texts]
    caption_ids, cases = pairs.captions["caption_id"][:], []
    for seed in seeds:
        drawn, shuffled = np.random.RandomState(seed), random.Random(seed)
        for row, (text, (words, kinds), tokens) in enumerate(zip(texts, documents, runs, strict=True)):
            wrong = (*shuffle_by_kind(words, kinds, drawn), *shuffle_runs(tokens, shuffled))
            picture = int(pairs.caption_image[row])
            choices = tuple(normalize(choice) for choice in (text, *wrong))
            cases.append(Case(f"{caption_ids[row]}/{seed}", str(seed), (picture,), choices, image_ids[picture]))
    unchanged = sum(case.captions[1:].count(case.captions[0]) for case in cases)
    return Cases(benchmark, cases, None, first_is_right, _metrics(seeds), {"n_unchanged": unchanged})


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
    text = re.sub(r"\s{2,}", " ", _MARKS.sub(" ", caption.lower())).strip(" ")
    return " ".join(text.split(" ")[:MAX_WORDS])


def _kinds(document: Doc) -> np.ndarray:
    tags = [token.tag_ for token in document]
    return np.array(["noun" if tag in NOUNS else "adjective" if tag in ADJECTIVES else "other" for tag in tags])


def _metrics(seeds: Sequence[int]) -> tuple[Metric, ...]:
    each = tuple(Metric(f"P@1_seed_{seed}", "accuracy", (str(seed),)) for seed in seeds) if len(seeds) > 1 else ()
    return (Metric("P@1", "accuracy"), Metric("P@1_ties_right", "accuracy", ties_right=True), *each)
