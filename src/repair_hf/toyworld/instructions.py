"""Edit instructions of the toy world: writing them and carrying them out.

They have the two forms of RePair (section 3.2 of the paper). A caption's instruction has error types and reads
`… Therefore, replace 'a' with 'b'.`; a picture's instruction is free text.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from repair_hf.toyworld.captions import (
    ACTION_AFTER,
    BACKGROUND_WORDS,
    COUNT_WORDS,
    NOUNS,
    READ,
    RELATION_WORDS,
    describe,
    describe_scene,
    inflect,
    match_caption,
    parse,
    parse_thing,
    singular,
)
from repair_hf.toyworld.scenes import KIND_OF, Alignment, Scene, Thing, align, facts_of
from repair_hf.toyworld.variations import rewrite, synonyms

REPLACE = re.compile(r"replace '([^']+)' with '([^']+)'|remove '([^']+)'", re.IGNORECASE)


def caption_instruction(caption: str, scene: Scene) -> tuple[list[str], str | None]:
    """Write the instruction that makes `caption` true of `scene` with as few changes as possible.

    Returns:
        The error types; and `Diagnosis. Therefore, replace 'a' with 'b', and remove 'c'.`, None for a true caption.
    """
    match = match_caption(caption)
    alignment = align(parse(caption), scene)
    if not alignment.differences:
        return [], None
    edits = [
        edit
        for which, target in (("1", "first"), ("2", "second"))
        for edit in _thing_edits(match, which, target, alignment)
    ]
    for gap in alignment.differences:
        if gap.name == "relation":
            edits.append(("replace", match["relation"], RELATION_WORDS[gap.shown][0]))
        elif gap.name == "background":
            edits.append(("replace", match["early"] or match["late"], BACKGROUND_WORDS[gap.shown][0]))
    kinds = list(dict.fromkeys(gap.kind for gap in alignment.differences))
    commands = [
        f"replace '{old}' with '{new}'" if verb == "replace" else f"remove '{old}'" for verb, old, new in edits
    ]
    return kinds, f"The image shows {describe_scene(scene)}. Therefore, {', and '.join(commands)}."


def apply_instruction(caption: str, instruction: str, rng: random.Random) -> str:
    """Carry out the commands `replace 'a' with 'b'` and `remove 'c'` of an instruction on a caption.

    Half of the draws also change another word to a synonym, as language models do. This makes the choice of the least
    changed candidate a real one.

    Raises:
        ValueError: If the instruction holds no command, or names words that are not in the caption.
    """
    commands = REPLACE.findall(instruction)
    if not commands:
        raise ValueError(f"No command of the form \"replace 'a' with 'b'\" or \"remove 'c'\" in {instruction!r}.")
    spans = []
    for old, new, gone in commands:
        found = _whole_words(old or gone).search(caption)
        if found is None:
            raise ValueError(f"The instruction names {old or gone!r}, which is not in the caption {caption!r}.")
        spans.append((found.start(), found.end(), new))
    edited = re.sub(r" +([.,]|$)", r"\1", " ".join(rewrite(caption, spans).split()))
    edited = edited[0].upper() + edited[1:] if caption[0].isupper() else edited
    return _take_liberty(edited, rng) if rng.random() < 0.5 else edited


@lru_cache(4096)  # `re` itself keeps 512
def _whole_words(words: str) -> re.Pattern[str]:
    return re.compile(rf"\b{re.escape(words)}\b", re.IGNORECASE)


def skip_command(instruction: str, rng: random.Random) -> str | None:
    """Leave out one of the commands of a caption's instruction; None if there is only one."""
    commands = [match[0] for match in REPLACE.finditer(instruction)]
    if len(commands) < 2:
        return None
    commands.pop(rng.randrange(len(commands)))
    return f"Therefore, {', and '.join(commands)}."


def scene_instruction(scene: Scene, goal: Scene) -> str:
    """Write the instruction that turns a picture of `scene` into one of `goal`."""
    steps = []
    for before, after in ((scene.subject, goal.subject), (scene.other, goal.other)):
        if before and after and before != after:
            steps.append(f"Replace the {_definite(before)} with {describe(after)}.")
    if goal.other and not scene.other:
        steps.append(f"Add {describe(goal.other)} so that the {_definite(goal.subject)} is {goal.relation} of it.")
    elif goal.other and goal.relation != scene.relation:
        steps.append(f"Move the {_definite(goal.subject)} to be {goal.relation} of the {_definite(goal.other)}.")
    if goal.background != scene.background:
        steps.append(f"Change the background to {goal.background}.")
    return " ".join([*steps, "Keep everything else as it is."])


def image_errors(scene: Scene, goal: Scene) -> list[str]:
    """Name the error types of a picture of `scene` that should show `goal`, each once."""
    shown, errors = facts_of(scene), []
    for slot, value in facts_of(goal).items():
        if slot not in shown:
            errors.append("Object")
        elif value != shown[slot]:
            errors.append(KIND_OF.get(slot[1], "Attribute"))
    return list(dict.fromkeys(errors))


def apply_image_instruction(scene: Scene, instruction: str) -> Scene:
    """Carry out an instruction on a scene; steps that the world does not understand change nothing."""
    names = {_definite(scene.subject): "subject"} | ({_definite(scene.other): "other"} if scene.other else {})
    for old, new in re.findall(r"Replace the ([^.]+?) with ([^.]+)\.", instruction):
        thing = parse_thing(new)
        if thing and old in names:
            changes: dict[str, Any] = {names[old]: thing}
            scene = replace(scene, **changes)
    if added := re.search(r"Add ([^.]+?) so that the [^.]+ is (\w+) of it\.", instruction):
        thing = parse_thing(added[1])
        if thing and added[2] in RELATION_WORDS:
            scene = replace(scene, other=thing, relation=added[2])
    moved = re.search(r"Move the [^.]+? to be (\w+) of ", instruction)
    if moved and moved[1] in RELATION_WORDS and scene.other:
        scene = replace(scene, relation=moved[1])
    if (changed := re.search(r"Change the background to (\w+)\.", instruction)) and changed[1] in BACKGROUND_WORDS:
        scene = replace(scene, background=changed[1])
    return scene


def _thing_edits(match: re.Match, which: str, target: str, alignment: Alignment) -> list[tuple[str, str, str]]:
    """Return the replacements in the phrase of one thing: its core (count to noun), and its trailing action."""
    gaps = {gap.name: gap.shown for gap in alignment.differences if gap.target == target}
    if "thing" in gaps:
        gone = (
            match["tail"].strip()
            if which == "2"
            else match.string[match.start("core1") : match.start("core2")].strip()
        )
        return [("remove", gone, "")]
    edits = []
    if "action" in gaps and match[f"after{which}"]:
        edits.append(("replace", match[f"after{which}"], ACTION_AFTER[gaps.pop("action")][0]))
    if gaps:
        count = gaps.get("count", READ["count"][match[f"count{which}"]])
        noun = NOUNS[gaps["shape"]][0] if "shape" in gaps else singular(match[f"noun{which}"])
        words = [
            COUNT_WORDS[count][0] if "count" in gaps else match[f"count{which}"],
            gaps.get("size", match[f"size{which}"]),
            gaps.get("action", match[f"before{which}"]),
            gaps.get("color", match[f"color{which}"]),
            inflect(noun, count),
        ]
        edits.insert(0, ("replace", match[f"core{which}"], " ".join(word for word in words if word)))
    return edits


def _definite(thing: Thing) -> str:
    """Return the words after `the` that name a thing."""
    return describe(thing).removeprefix("a ")


def _take_liberty(caption: str, rng: random.Random) -> str:
    match = match_caption(caption)
    groups = ("relation", "early", "late", "size1", "after1", "count1", "size2", "after2", "count2")
    options = [(*match.span(name), word) for name in groups if match[name] for word in synonyms(name, match[name])]
    return rewrite(caption, [rng.choice(options)]) if options else caption
