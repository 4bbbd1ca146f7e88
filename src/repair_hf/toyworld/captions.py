"""Toy captions: written by a grammar, read back by the same grammar, corrected by an instruction.

In:  a `Scene`, or a caption.
Out: captions in varied wording that mention some of the facts; `Facts` parsed from a caption; edit instructions in the two forms that
     RePair uses (paper section 3.2): for a caption `[Count Error]: … Therefore, replace 'a' with 'b'.`, for a picture free text.

One table of phrases serves writing and reading, so whatever the grammar writes it also understands.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from repair_hf.toyworld.scenes import (
    ACTIONS,
    COLORS,
    INVERSE,
    KIND_OF,
    SIZES,
    Facts,
    Scene,
    Thing,
    align,
    satisfy,
)

NOUNS = {
    "circle": ("circle", "ball"),
    "square": ("square", "box"),
    "triangle": ("triangle", "pyramid"),
    "star": ("star",),
    "heart": ("heart",),
}
COUNT_WORDS = {1: ("a", "one"), 2: ("two", "a pair of"), 3: ("three", "a trio of")}
SIZE_WORDS = {"large": ("large", "big", "huge"), "small": ("small", "little", "tiny")}
ACTION_BEFORE = {
    "sleeping": ("sleeping", "dozing"),
    "jumping": ("jumping", "leaping"),
    "running": ("running", "racing"),
}
ACTION_AFTER = {
    "sleeping": ("sleeping", "fast asleep"),
    "jumping": ("jumping", "leaping up"),
    "running": ("running", "racing along"),
}
RELATION_WORDS = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
BACKGROUND_WORDS = {
    "day": ("by day", "in daylight"),
    "night": ("at night", "after dark"),
}
PREFIXES = ("a picture of ", "here we see ")


def _reading(table: dict) -> dict[str, object]:
    return {phrase: meaning for meaning, phrases in table.items() for phrase in phrases}


def _any_of(name: str, phrases) -> str:
    return f"(?P<{name}>" + "|".join(sorted(map(re.escape, phrases), key=len, reverse=True)) + ")"


PLURALS = {noun + plural: shape for shape, nouns in NOUNS.items() for noun in nouns for plural in ("", "s", "es")}
READ = {
    "count": _reading(COUNT_WORDS),
    "size": _reading(SIZE_WORDS),
    "before": _reading(ACTION_BEFORE),
    "color": {color: color for color in COLORS},
    "noun": PLURALS,
    "after": _reading(ACTION_AFTER),
}
RELATION_READ, BACKGROUND_READ = _reading(RELATION_WORDS), _reading(BACKGROUND_WORDS)


def _phrase(which: str) -> str:
    part = {name: _any_of(f"{name}{which}", READ[name]) for name in READ}
    core = f"{part['count']}(?: {part['size']})?(?: {part['before']})?(?: {part['color']})? {part['noun']}"
    return f"(?P<core{which}>{core})(?: {part['after']})?"


CAPTION = re.compile(
    "(?:" + _any_of("early", BACKGROUND_READ) + ", )?" + _any_of("prefix", PREFIXES) + "?" + _phrase("1")
    + "(?P<tail> (?:and|" + _any_of("relation", RELATION_READ) + ") " + _phrase("2") + ")?"
    + "(?: " + _any_of("late", BACKGROUND_READ) + ")?"
)  # fmt: skip
THING = re.compile(_phrase(""))
REPLACE = re.compile(r"replace '([^']+)' with '([^']+)'|remove '([^']+)'", re.IGNORECASE)


def write(scene: Scene, rng: random.Random) -> str:
    """A caption that is true of the scene, mentions its subject and some of the rest, in wording drawn from the grammar."""
    second = scene.other if scene.other and rng.random() < 0.95 else None
    alike = second is not None and second.shape == scene.subject.shape  # then only the color tells them apart
    first_words = _words(scene.subject, rng, 1.0 if alike else 0.95)
    background = rng.choice(BACKGROUND_WORDS[scene.background]) if rng.random() < 0.65 else ""
    body = first_words
    if second:
        second_words = _words(second, rng, 1.0 if alike else 0.95)
        swap, joined = rng.random() < 0.35, rng.random() < 0.1
        relation = INVERSE[scene.relation] if swap else scene.relation
        link = "and" if joined else rng.choice(RELATION_WORDS[relation])
        body = f"{second_words} {link} {first_words}" if swap else f"{first_words} {link} {second_words}"
    prefix = rng.choice(PREFIXES) if rng.random() < 0.15 else ""
    if background and rng.random() < 0.3:
        text = f"{background}, {prefix}{body}"
    else:
        text = f"{prefix}{body} {background}".rstrip()
    return text[0].upper() + text[1:] + "." if rng.random() < 0.5 else text


def parse(caption: str) -> Facts:
    """The facts that a caption states.

    Raises:
        ValueError: If the caption lies outside the grammar.
    """
    return _facts(_match(caption))


def describe(thing: Thing) -> str:
    """A thing in full, in the grammar's plainest words: `two large sleeping red circles`."""
    words = [COUNT_WORDS[thing.count][0], thing.size, thing.action, thing.color, thing.shape + "s" * (thing.count > 1)]
    return " ".join(word for word in words if word)


def describe_scene(scene: Scene) -> str:
    """A whole scene in the grammar's plainest words."""
    body = describe(scene.subject)
    if scene.other:
        body += f" {RELATION_WORDS[scene.relation][0]} {describe(scene.other)}"
    return f"{body} {BACKGROUND_WORDS[scene.background][0]}"


def caption_instruction(caption: str, scene: Scene) -> str:
    """What to change in `caption` so that it becomes true of `scene`, and nothing else.

    Returns:
        `[Error types]: diagnosis. Therefore, replace 'a' with 'b', and remove 'c'.`; or an instruction to change nothing if the caption is true.
    """
    match = _match(caption)
    facts = _facts(match)
    alignment = align(facts, scene)
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
        before, after = (THING.fullmatch(f"{article}{text}") for article, text in (("a ", old), ("", new)))
        before = before or THING.fullmatch(old)  # only a single thing has the article that `the` replaces
        if before is None or after is None:
            raise ValueError(f"{old!r} or {new!r} is no thing of the toy world.")
        said, shown = _thing(after, ""), _thing(before, "")
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
        match = THING.fullmatch(new)
        if match and old in names:
            scene = replace(scene, **{names[old]: _thing(match, "")})
    if added := re.search(r"Add ([^.]+?) so that the [^.]+ is (\w+) of it\.", instruction):
        match = THING.fullmatch(added[1])
        if match and added[2] in RELATION_WORDS:
            scene = replace(scene, other=_thing(match, ""), relation=added[2])
    moved = re.search(r"Move the [^.]+? to be (\w+) of ", instruction)
    if moved and moved[1] in RELATION_WORDS and scene.other:
        scene = replace(scene, relation=moved[1])
    if (changed := re.search(r"Change the background to (\w+)\.", instruction)) and changed[1] in BACKGROUND_WORDS:
        scene = replace(scene, background=changed[1])
    return scene


def _words(thing: Thing, rng: random.Random, color_share: float) -> str:
    """A phrase for a thing of a scene; size, action and color may be left out."""
    size = rng.choice(SIZE_WORDS[thing.size]) if thing.size in SIZES and rng.random() < 0.75 else ""
    color = thing.color if rng.random() < color_share else ""
    before = after = ""
    if thing.action in ACTIONS and rng.random() < 0.8:
        if rng.random() < 0.4:
            before = rng.choice(ACTION_BEFORE[thing.action])
        else:
            after = rng.choice(ACTION_AFTER[thing.action])
    noun = _inflect(rng.choice(NOUNS[thing.shape]), thing.count)
    words = (rng.choice(COUNT_WORDS[thing.count]), size, before, color, noun, after)
    return " ".join(word for word in words if word)


def _inflect(noun: str, count: int) -> str:
    return noun if count == 1 else noun + ("es" if noun.endswith("x") else "s")


def _match(caption: str) -> re.Match:
    """Lower-casing keeps offsets, so spans found here are spans of the caption itself."""
    match = CAPTION.fullmatch(caption.lower().rstrip(". "))
    if match is None:
        raise ValueError(f"{caption!r} is not a caption of the toy world's grammar.")
    return match


def _facts(match: re.Match) -> Facts:
    second = _thing(match, "2") if match["tail"] else None
    relation = RELATION_READ[match["relation"]] if match["relation"] else None
    background = match["early"] or match["late"]
    return Facts(_thing(match, "1"), second, relation, BACKGROUND_READ[background] if background else None)


def _thing(match: re.Match, which: str) -> Thing:
    read = {name: table[match[name + which]] if match[name + which] else None for name, table in READ.items()}
    return Thing(read["noun"], read["color"], read["count"], read["size"], read["before"] or read["after"])


def _thing_edits(match: re.Match, which: str, target: str, alignment) -> list[tuple[str, str, str]]:
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
        noun = NOUNS[gaps["shape"]][0] if "shape" in gaps else _singular(match[f"noun{which}"])
        words = [
            COUNT_WORDS[count][0] if "count" in gaps else match[f"count{which}"],
            gaps.get("size", match[f"size{which}"]),
            gaps.get("action", match[f"before{which}"]),
            gaps.get("color", match[f"color{which}"]),
            _inflect(noun, count),
        ]
        edits.insert(0, ("replace", match[f"core{which}"], " ".join(word for word in words if word)))
    return edits


def _singular(noun: str) -> str:
    return next(base for base in NOUNS[PLURALS[noun]] if noun.startswith(base))


def _definite(thing: Thing) -> str:
    """The words after `the` that name a thing: its description, without the article of a single one."""
    return describe(thing).removeprefix("a ")


def _take_liberty(caption: str, rng: random.Random) -> str:
    """Say one phrase of the caption in other words of the same meaning."""
    match = _match(caption)
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
