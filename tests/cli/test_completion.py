import subprocess
from contextlib import redirect_stdout
from io import StringIO

import pytest

from repair_hf.cli import main as cli

# What bash does at the Tab key: the function that is registered for the command fills COMPREPLY.
ASK = """source "./$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
found=$(complete -p repair-hf); found=${found#*-F }
${found%% *} repair-hf "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}" """


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """Shell -> its script."""
    found = {}
    for shell in ("bash", "zsh", "fish"):
        with redirect_stdout(StringIO()) as out:
            assert cli.main(["completion", shell]) == 0
        found[shell] = out.getvalue()
    return found


@pytest.mark.parametrize(
    "words, expected",
    [
        ([""], set(cli.COMMANDS)),
        (["sy"], {"synthesize"}),
        (["push", ""], {"records", "model"}),
        (["push", "records", "--em"], {"--embed-source-images"}),
        (["train", "--fill", ""], {"edits", "paper"}),
        (["train", "--learning"], {"--learning-rate"}),
        (["train", "--bf"], {"--bf16", "--bf16-full-eval"}),
        (["mine", "--conf"], {"--config"}),
        (["show", "READ"], {"README.md"}),
        (["show", "--records", "READ"], {"README.md"}),
    ],
)
def test_bash_completes(scripts, tmp_path, words, expected):
    (tmp_path / "README.md").touch()
    (tmp_path / "script").write_text(scripts["bash"])
    asked = ["bash", "-c", ASK, "bash", "script", "repair-hf", *words]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert {word for word in done.stdout.split() if word[0] != "-" or words[-1]} == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_every_command_and_its_flags(scripts, shell):
    assert all(name in scripts[shell] for name in cli.COMMANDS)
    assert "near-duplicates" in scripts[shell] and "--near_duplicates" not in scripts[shell]
