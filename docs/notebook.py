"""Make `examples/mine_and_look.ipynb` from `examples/mine_and_look.py`, and run it. Needs the extra `notebook`.

python docs/notebook.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT, NOTEBOOK = EXAMPLES / "mine_and_look.py", EXAMPLES / "mine_and_look.ipynb"


def cells(script: str) -> list[tuple[str, str]]:
    """Return kind and text of each cell; `# %% Title` begins one, after a cell with its title."""
    head, *parts = script.split("\n# %% ")
    _, doc, code = head.split('"""', 2)
    found = [("markdown", f"# {doc.strip().splitlines()[0]}"), ("code", code.strip())]
    for part in parts:
        title, _, code = part.partition("\n")
        found += [("markdown", f"## {title.strip()}"), ("code", code.strip())]
    return found


def main() -> None:
    import nbformat
    from nbclient import NotebookClient

    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    made = [make[kind](text, id=f"cell-{n}") for n, (kind, text) in enumerate(cells(SCRIPT.read_text()))]
    notebook = nbformat.v4.new_notebook(cells=made)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, resources={"metadata": {"path": folder}}, record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":  # without logs and progress bars
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
