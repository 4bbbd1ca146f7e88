"""Load spaCy pipelines, which tag words and find noun chunks, and NLTK's word tokenizer.

Both are in the extra `repair-hf[aro]`. spaCy's models are separate packages, which no extra can install.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from repair_hf.runtime.options import UserError

if TYPE_CHECKING:
    from spacy.language import Language

MODEL = "en_core_web_sm"
NOUNS = frozenset({"NN", "NNS", "NNP", "NNPS"})  # Penn Treebank tags, which spaCy's English models use
ADJECTIVES = frozenset({"JJ", "JJR", "JJS"})


def load_parser(name_or_folder: str = MODEL, *, noun_chunks: bool = False) -> Language:
    """Load a spaCy pipeline that tags words; noun chunks take a dependency parser.

    Raises:
        UserError: If spaCy or the model is not installed, or the model lacks a needed part.

    Example:
        >>> [(token.text, token.tag_) for token in load_parser()("a red ball")]
        [('a', 'DT'), ('red', 'JJ'), ('ball', 'NN')]
    """
    try:
        import spacy
    except ModuleNotFoundError as error:
        raise UserError(
            "spaCy is needed to tag words, and is not installed: pip install 'repair-hf[aro]', then "
            f"python -m spacy download {MODEL}."
        ) from error
    try:
        parser = spacy.load(name_or_folder)
    except (OSError, ValueError) as error:  # ValueError: a folder of another version, or of other parts
        reason = " ".join(str(error).split())[:200]
        remedy = (
            "give the folder of a spaCy pipeline"
            if Path(name_or_folder).is_dir()
            else f"install it by: python -m spacy download {name_or_folder}"
        )
        raise UserError(f"The spaCy model `{name_or_folder}` cannot be loaded ({reason}); {remedy}.") from error
    _check(parser, name_or_folder, noun_chunks)
    return parser


def load_tokenizer() -> Callable[[str], list[str]]:
    """Load NLTK's word tokenizer for one sentence: `it's red.` is `it`, `'s`, `red`, `.`; it needs no data files."""
    try:
        from nltk.tokenize import NLTKWordTokenizer
    except ModuleNotFoundError as error:
        raise UserError(
            "NLTK is needed to tokenize words, and is not installed: pip install 'repair-hf[aro]'."
        ) from error
    return NLTKWordTokenizer().tokenize


def _check(parser: Language, name: str, noun_chunks: bool) -> None:
    """Try the pipeline on a phrase: a missing part shows as empty tags, not as an error."""
    document = parser("a red ball on a table")
    needed, has_it = "tags", all(token.tag_ for token in document)
    if has_it and noun_chunks:
        needed, has_it = "a dependency parser", document.has_annotation("DEP")
    if not has_it:
        raise UserError(
            f"The spaCy model `{name}` has the parts {parser.pipe_names}, and none that gives words {needed}; "
            f"use an English model that has one, such as {MODEL}."
        )
