"""Write the pages that come from the code: `command-line.md` from the parsers, `api.md` from the docstrings.

`conf.py` runs this at every build; git ignores the pages.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WIDTH = "100"  # columns of a help text
SECTION = re.compile(r"^(Args of the call|Args|Attributes|Returns|Raises|Shape|Example):\n", re.MULTILINE)
MOST_PARAMETERS = 20  # a longer signature is that of a dataclass of options
NOTE = "<!-- Written by docs/reference.py at every build of the documentation. -->"


def main() -> None:
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Return the text of each generated page by its file name."""
    return {"command-line.md": command_line(), "api.md": api()}


def command_line() -> str:
    from repair_hf.cli.main import COMMANDS
    from repair_hf.cli.subcommands import load_command

    intro = "Every command with all its options, as `--help-all` prints them. `--help` prints those that matter first."
    also = "`train` takes all `TrainingArguments` of `transformers` too; they are left out here."
    parts = [f"# Command line\n\n{NOTE}\n\n{intro} {also}\n"]
    parts.append(_fenced(_help()))
    for name in COMMANDS:
        actions = vars(load_command(name)).get("ACTIONS", {})
        parts.append(f"## {name}\n\n{_fenced(_help(name))}")
        parts += [f"### {name} {action}\n\n{_fenced(_help(name, action))}" for action in actions]
    return "\n".join(parts)


def _help(*words: str) -> str:
    """Return what `repair-hf ... --help-all` prints, without transformers' own arguments."""
    from repair_hf.cli.main import main as run

    before, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), WIDTH
    try:
        with redirect_stdout(StringIO()) as shown, suppress(SystemExit):
            run([*words, "--help-all"])
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    text = re.sub(r"^TrainingArguments:.*?(?=^every command:)", "", shown.getvalue().strip(), flags=re.M | re.S)
    return "\n".join(line.rstrip() for line in text.splitlines())


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```\n"


def api() -> str:
    import repair_hf

    names = [name for name in repair_hf.__all__ if name != "__version__"]
    listed = "\n".join(f"- [{name}](#{name.lower()})" for name in names)
    intro = "The public names of `repair_hf`. Import them as `from repair_hf import mine_false_positives`."
    parts = [f"# Python API\n\n{NOTE}\n\n{intro}\n\n{listed}\n"]
    for name in names:
        value = getattr(repair_hf, name)
        parts.append(f"## {name}\n\n{_described(name, value)}")
        if inspect.isclass(value):
            parts += [f"### {name}.{method}\n\n{_described(method, bound)}" for method, bound in _methods(value)]
    return "\n".join(parts)


def _methods(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the documented public methods that a class or a base in its room defines, by name."""
    room = owner.__module__.rpartition(".")[0]
    found = [vars(each) for each in owner.__mro__ if each.__module__.startswith(f"{room}.")]
    for name, kind in dict(pair for methods in found for pair in methods.items()).items():
        is_method = inspect.isfunction(kind) or isinstance(kind, classmethod | staticmethod)
        if is_method and name[0] != "_" and getattr(owner, name).__doc__:
            yield name, getattr(owner, name)


def _described(name: str, value: Any) -> str:
    return f"```text\n{_signature(name, value)}\n```\n\n{_markdown(inspect.getdoc(value) or '')}\n"


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    if len(parameters) > MOST_PARAMETERS:
        return f"{name}(output_dir, **options)"
    words = [_parameter(each) for each in parameters]
    keyword = next((n for n, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY), None)
    if keyword is not None:
        words.insert(keyword, "*")
    gives = str(signature.return_annotation).replace("'", "")
    result = "" if signature.return_annotation in (signature.empty, "None", None) else f" -> {gives}"
    one = f"{name}({', '.join(words)}){result}"
    return one if len(one) <= 100 else "\n".join([f"{name}(", *(f"    {word}," for word in words), f"){result}"])


def _parameter(each: inspect.Parameter) -> str:
    star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    kind = "" if each.annotation is each.empty else ": " + str(each.annotation).replace("'", "")
    default = "" if each.default is each.empty else f" = {each.default!r}"
    return f"{star}{each.name}{kind}{default}"


def _markdown(doc: str) -> str:
    """Turn a Google-style docstring into Markdown."""
    text, *sections = SECTION.split(doc)
    parts = [re.sub(r"\[`~?(?:\w+\.)*(\w+)`\]", r"`\1`", text).strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        own = inspect.cleandoc("\n" + body)
        if title == "Example":
            parts.append(f"```pycon\n{own}\n```")
        elif title in ("Returns", "Shape"):
            parts.append(f"**{title}**: {own}")
        else:
            entries = re.sub(r"\n\s+", " ", own).splitlines()
            parts.append(f"**{title}**:\n\n" + "\n".join(_entry(each) for each in entries))
    return "\n\n".join(parts)


def _entry(line: str) -> str:
    name, _, meaning = line.partition(": ")
    return f"- `{name}`: {meaning}" if re.fullmatch(r"[\w, ]+", name) and meaning else f"- {line}"


if __name__ == "__main__":
    main()
