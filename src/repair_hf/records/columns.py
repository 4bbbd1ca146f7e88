"""The columns of records, their types and meanings."""

from __future__ import annotations

from typing import Literal, get_args

from datasets import Features, Image, List, Value

SOURCES = ("q", "gt", "fp")
MODALITIES = {
    "t2i": {"q": "text", "gt": "image", "fp": "image", "edit": "image"},
    "i2t": {"q": "image", "gt": "text", "fp": "text", "edit": "text"},
}
DIRECTIONS = tuple(MODALITIES)
Kind = Literal["Object", "Attribute", "Action", "Count", "Relation"]  # of the detail that a contrast set changes
KINDS: tuple[Kind, ...] = get_args(Kind)
REASONS = {
    "gt_invalid": "the audit found that the annotation does not fit the query",
    "fp_too_similar": "the audit found that the false positive is a correct answer too",
    "no_op": "no candidate changed anything, or the instruction found nothing to change",
    "llm_unparsed": "the LLM's answer did not have the requested form, however often it was asked",
    "llm_refused": "the LLM refused to answer",
    "llm_failed": "every attempt to ask the LLM failed",
    "editor_failed": "the image editor gave no image",
    "edit_false": "the check found that no edit fits the query",
    "unreadable_image": "an image could not be opened",
}
REJECTED = ("gt_invalid", "fp_too_similar")  # by the audit

_TEXT, _IMAGE, _INTEGER, _REAL = Value("string"), Image(), Value("int64"), Value("float32")
_FLAG = Value("bool")
_WHAT = {  # column: (type, meaning); what records and dropped failures share
    "round": (_INTEGER, "round of repair, from 1"),
    "direction": (_TEXT, "`t2i`: a caption retrieved images; `i2t`: an image retrieved captions"),
    "q_id": (_TEXT, "the query's id in the pairs"),
    "gt_id": (_TEXT, "the ground truth shown to the audit: the query's own image, or the image's first caption"),
    "fp_id": (_TEXT, "the false positive's id in the pairs"),
    "q_text": (_TEXT, "the query"),
    "q_image": (_IMAGE, "the query"),
    "gt_text": (_TEXT, "the ground truth"),
    "gt_image": (_IMAGE, "the ground truth"),
    "fp_text": (_TEXT, "the false positive"),
    "fp_image": (_IMAGE, "the false positive"),
}
_EDIT = {
    "edit_text": (_TEXT, "the false positive, edited so that it fits the query"),
    "edit_image": (_IMAGE, "the false positive, edited so that it fits the query"),
}
_WHY = {
    "fp_score": (_REAL, "cosine of query and false positive"),
    "fp_rank": (_INTEGER, "rank of the false positive among all candidates, from 1"),
    "gt_score": (_REAL, "cosine of the query and the best of its annotated positives"),
    "gt_rank": (_INTEGER, "rank of that positive"),
    "gt_reason": (_TEXT, "why the audit accepts or rejects the ground truth"),
    "fp_reason": (_TEXT, "why the audit accepts or rejects the false positive"),
    "edit_instruction": (_TEXT, "what the editor was asked to change"),
    "error_types": (List(_TEXT), "kinds of error of the false positive, as the LLM named them with the instruction"),
}
_CHOICE = {
    "edit_similarity": (_REAL, "cosine of the edit and the false positive"),
    "candidate_similarities": (
        List(_REAL),
        "the same for each candidate; null for one that failed or changed nothing",
    ),
    "candidate": (_INTEGER, "which candidate was taken, from 0"),
    "edit_fits": (_FLAG, "whether the check found that the edit fits the query; null if it was not checked"),
}
_MADE_BY = {
    "retriever": (_TEXT, "the encoder that failed, and by which the candidate was chosen"),
    "llm": (_TEXT, "the model that audited, instructed and edited captions"),
    "editor": (_TEXT, "the model that edited images"),
    "prompt_digest": (_TEXT, "names the wording of the prompts"),
    "seed": (_INTEGER, "seed of the synthesis"),
}
_ID = {"record_id": (_TEXT, "hash of what the record holds")}
_REASON = {
    "reason": (_TEXT, "why there is no record"),
    "detail": (_TEXT, "what exactly went wrong, where that says more"),
}

RECORD_COLUMNS = _ID | _WHAT | _EDIT | _WHY | _CHOICE | _MADE_BY
DROPPED_COLUMNS = _REASON | {k: v for k, v in _WHAT.items() if v[0] != _IMAGE} | _WHY | _MADE_BY
FEATURES = Features({name: kind for name, (kind, _) in RECORD_COLUMNS.items()})
_NAMES = {"id": _TEXT, "kind": _TEXT, "image_id": _TEXT}
CONTRAST_FEATURES = {  # of contrast sets, by the benchmark whose columns they have
    "winoground": Features(_NAMES, image_0=_IMAGE, image_1=_IMAGE, caption_0=_TEXT, caption_1=_TEXT),
    "sugarcrepe": Features(_NAMES, image=_IMAGE, caption=_TEXT, negative_caption=_TEXT),
}
DROPPED_FEATURES = Features({name: kind for name, (kind, _) in DROPPED_COLUMNS.items()})
