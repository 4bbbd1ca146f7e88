"""Load spaCy pipelines, which tag words and find noun chunks.

spaCy is in the extras `repair-hf[study]` and `repair-hf[aro]`. Its models are packages of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from repair_hf.runtime.options import UserError

if TYPE_CHECKING:
    from spacy.language import Language

MODEL = "en_core_web_sm"
NOUNS = frozenset({"NN", "NNS", "NNP", "NNPS"})  # Penn Treebank tags, which spaCy's English models use
ADJECTIVES = frozenset({"JJ", "JJR", "JJS"})


def load_parser(name_or_folder: str = MODEL, *, noun_chunks: bool = False) -> Language:
    """Load a spaCy pipeline that tags words; noun chunks take a dependency parser. `world` is the toy world's own.

    Raises:
        UserError: If spaCy or the model is not installed, or the model lacks a needed part.

    Example:
        >>> [(token.text, token.tag_) for token in load_parser()("a red ball")]
        [('a', 'DT'), ('red', 'JJ'), ('ball', 'NN')]
    """
    if name_or_folder == "world":
        from repair_hf.toyworld.parsing import build_parser

        return build_parser()
    try:
        import spacy
    except ModuleNotFoundError as error:
        raise UserError(
            f"spaCy is not installed: pip install 'repair-hf[study]', then python -m spacy download {MODEL}."
        ) from error
    try:
        parser = spacy.load(name_or_folder)
    except (OSError, ValueError) as error:  # ValueError: a folder of another version, or of other parts
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"The spaCy model `{name_or_folder}` cannot be loaded ({reason}); give the folder of a spaCy pipeline, or "
            f"install one by: python -m spacy download {MODEL}."
        ) from error
    document = parser("a red ball on a table")  # a missing part shows as empty tags, not as an error
    if not (all(token.tag_ for token in document) and (document.has_annotation("DEP") or not noun_chunks)):
        needed = "tags and a dependency parser" if noun_chunks else "tags"
        raise UserError(
            f"The spaCy model `{name_or_folder}` has the parts {parser.pipe_names}, and gives words no {needed}; use "
            f"an English model that does, such as {MODEL}."
        )
    return parser
