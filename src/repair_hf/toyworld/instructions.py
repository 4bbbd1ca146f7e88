"""Edit instructions of the toy world: what is wrong about a caption or a picture, said and carried out.

In:  a caption and a `Scene` that it is not true of.
Out: instructions in the two forms that RePair uses (paper section 3.2): for a caption
     `[Count Error]: … Therefore, replace 'a' with 'b'.`, for a picture free text; captions and scenes after such an instruction.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from repair_hf.toyworld.captions import (
    ACTION_AFTER,
    BACKGROUND_WORDS,
    COUNT_WORDS,
    NOUNS,
    READ,
    RELATION_WORDS,
    SIZE_WORDS,
    describe,
    describe_scene,
    inflect,
    match_caption,
    parse,
    parse_thing,
    singular,
)
from repair_hf.toyworld.scenes import KIND_OF, Alignment, Scene, Thing, align, satisfy

REPLACE = re.compile(r"replace '([^']+)' with '([^']+)'|remove '([^']+)'", re.IGNORECASE)


def caption_instruction(caption: str, scene: Scene) -> str:
    """What to change in `caption` so that it becomes true of `scene`, and nothing else.

    Returns:
        `[Error types]: diagnosis. Therefore, replace 'a' with 'b', and remove 'c'.`; or an instruction to change nothing if the caption is true.
    """
    match = match_caption(caption)
    alignment = align(parse(caption), scene)
    if not alignment.differences:
        return "[No Error]: The caption is true of the image. Therefore, keep it."
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
    labels = ", ".join(kind if kind == "Hallucination" else f"{kind} Error" for kind in kinds)
    commands = [
        f"replace '{old}' with '{new}'" if verb == "replace" else f"remove '{old}'" for verb, old, new in edits
    ]
    return f"[{labels}]: The image shows {describe_scene(scene)}. Therefore, {', and '.join(commands)}."


def apply_instruction(caption: str, instruction: str, rng: random.Random) -> str:
    """Carry out the `replace 'a' with 'b'` and `remove 'c'` commands of an instruction on a caption.

    Every other draw also takes a liberty that the instruction does not ask for (another word of the same meaning), as language
    models do; choosing the least changed candidate is then a real choice.

    Raises:
        ValueError: If the instruction holds no command, or names words that the caption does not have.
    """
    commands = REPLACE.findall(instruction)
    if not commands:
        raise ValueError(f"No command of the form \"replace 'a' with 'b'\" or \"remove 'c'\" in {instruction!r}.")
    spans = []
    for old, new, gone in commands:
        found = re.search(rf"\b{re.escape(old or gone)}\b", caption, re.IGNORECASE)
        if found is None:
            raise ValueError(f"The instruction names {old or gone!r}, which is not in the caption {caption!r}.")
        spans.append((found.start(), found.end(), new))
    edited = caption
    for start, end, new in sorted(spans, reverse=True):
        edited = edited[:start] + new + edited[end:]
    edited = re.sub(r" +([.,]|$)", r"\1", re.sub(r"\s+", " ", edited)).strip()
    if caption[0].isupper():
        edited = edited[0].upper() + edited[1:]
    return _take_liberty(edited, rng) if rng.random() < 0.5 else edited


def image_instruction(caption: str, scene: Scene) -> str:
    """Free text that names what to change in the picture so that `caption` becomes true of it, and what to keep."""
    return scene_instruction(scene, satisfy(parse(caption), scene))


def scene_instruction(scene: Scene, goal: Scene) -> str:
    """What to change in a picture of `scene` so that it shows `goal`."""
    steps = []
    for before, after in ((scene.subject, goal.subject), (scene.other, goal.other)):
        if before and before != after:
            steps.append(f"Replace the {_definite(before)} with {describe(after)}.")
    if goal.other and not scene.other:
        steps.append(f"Add {describe(goal.other)} so that the {_definite(goal.subject)} is {goal.relation} of it.")
    elif goal.relation != scene.relation:
        steps.append(f"Move the {_definite(goal.subject)} to be {goal.relation} of the {_definite(goal.other)}.")
    if goal.background != scene.background:
        steps.append(f"Change the background to {goal.background}.")
    return " ".join([*steps, "Keep everything else as it is."])


def image_errors(instruction: str) -> list[str]:
    """In what the picture was wrong that an instruction of `image_instruction` puts right: kinds of error, in its order, each once.

    Raises:
        ValueError: If it names no change.
    """
    kinds = []
    for old, new in re.findall(r"Replace the ([^.]+?) with ([^.]+)\.", instruction):
        said = parse_thing(new)
        shown = parse_thing(f"a {old}") or parse_thing(old)  # only a single thing has the article that `the` replaces
        if said is None or shown is None:
            raise ValueError(f"{old!r} or {new!r} is no thing of the toy world.")
        kinds += [kind for name, kind in KIND_OF.items() if getattr(said, name) != getattr(shown, name)]
    kinds += ["Object"] * ("Add " in instruction) + ["Relation"] * ("Move the " in instruction)
    kinds += ["Attribute"] * ("Change the background" in instruction)
    if not kinds:
        raise ValueError(f"The instruction names no change: {instruction!r}.")
    return list(dict.fromkeys(kinds))


def apply_image_instruction(scene: Scene, instruction: str) -> Scene:
    """The scene after the steps of an instruction; a step that the world does not understand changes nothing."""
    names = {_definite(scene.subject): "subject"} | ({_definite(scene.other): "other"} if scene.other else {})
    for old, new in re.findall(r"Replace the ([^.]+?) with ([^.]+)\.", instruction):
        thing = parse_thing(new)
        if thing and old in names:
            scene = replace(scene, **{names[old]: thing})
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
    """Replacements inside the phrase of one thing: its core (count to noun) as a whole, its trailing action apart."""
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
    """The words after `the` that name a thing: its description, without the article of a single one."""
    return describe(thing).removeprefix("a ")


def _take_liberty(caption: str, rng: random.Random) -> str:
    """Say one phrase of the caption in other words of the same meaning."""
    match = match_caption(caption)
    tables = {"relation": RELATION_WORDS, "early": BACKGROUND_WORDS, "late": BACKGROUND_WORDS}
    for which in ("1", "2"):
        tables |= {f"size{which}": SIZE_WORDS, f"after{which}": ACTION_AFTER, f"count{which}": COUNT_WORDS}
    options = [(name, other) for name, table in tables.items() if match[name]
               for phrases in table.values() if match[name] in phrases for other in phrases if other != match[name]]  # fmt: skip
    if not options:
        return caption
    name, other = rng.choice(options)
    start, end = match.span(name)
    if caption[start].isupper():
        other = other[0].upper() + other[1:]
    return caption[:start] + other + caption[end:]
