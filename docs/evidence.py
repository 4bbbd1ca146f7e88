"""Draw the pictures of docs/study.md from the rows beside it, into `docs/images`: what is gained, kept and paid.

python docs/evidence.py
"""

from __future__ import annotations

from pathlib import Path

from sheet import chart, save

from repair_hf.analysis.pages import INK, MUTED, ROLES
from repair_hf.study.columns import dollars_of
from repair_hf.study.methods import DEFAULT, PAPER, PLAIN
from repair_hf.study.results import BASE, load_rows
from repair_hf.study.statistics import Line, Lines, lines_of

DOCS = Path(__file__).parent
# of equal cells, the later file's is taken
FILES = ("small.parquet", "small-74ad2c2b.parquet", "large-74ad2c2b.parquet")
CURVES = {PLAIN: MUTED, DEFAULT.name: ROLES["edit"], PAPER: ROLES["fp"], "tripletclip": ROLES["gt"]}
WORLDS = {"small": "1,000 pictures", "large": "10,000 pictures"}
BOUGHT = {  # method: name, color, marker
    DEFAULT.name: ("both, 3 candidates", ROLES["edit"], "s"),
    "one-candidate": ("both, 1 candidate", ROLES["edit"], "o"),
    "images-alone": ("images, 3 candidates", ROLES["fp"], "s"),
    "images-one-candidate": ("images, 1 candidate", ROLES["fp"], "o"),
    "captions-alone": ("captions, 3 candidates", ROLES["gt"], "s"),
}
WEIGHT = 0.8
AXES = {"R@1": "gained: R@1 on the test pictures (%)", "kept": "kept: R@1 on the base's own domain (%)"}


def main() -> None:
    worlds = lines_of(load_rows([DOCS / "study-rows" / name for name in FILES]), "test")
    draw_curves(worlds)
    draw_money(worlds["small"])


def percent(line: Line, measure: str) -> float:
    return 100 * line.estimates[measure].mean


def draw_curves(worlds: dict[str, Lines]) -> None:
    """Draw what methods gain against what they keep, by the weight of the tuned model."""
    with chart(2.6, columns=2, width=6.5) as (figure, panels):
        for axes, (name, title) in zip(panels, WORLDS.items(), strict=True):
            for method, color in CURVES.items():
                lines = [
                    line for line in worlds[name].values() if line.cell.method == method and line.cell.budget == "all"
                ]
                if not lines:
                    continue
                lines = [worlds[name][BASE], *sorted(lines, key=lambda line: line.cell.blend)]
                points = [(percent(line, "R@1"), percent(line, "kept")) for line in lines]
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1, color=color, label=method)
                for line, point in zip(lines[1:], points[1:], strict=True):
                    axes.annotate(f"{line.cell.blend:g}", point, xytext=(4, 2), textcoords="offset points", fontsize=6)
            axes.set(title=title, xlabel=AXES["R@1"], ylabel=AXES["kept"])
        panels[0].legend(fontsize=6, loc="lower left")
    save(figure, DOCS / "images" / "study.png")


def draw_money(lines: Lines) -> None:
    """Draw what a part of the records gains and keeps at one weight, against its dollars at list prices."""
    plain = lines[f"{PLAIN}, blend {WEIGHT:g}"]
    with chart(2.8, columns=2, width=6.5) as (figure, panels):
        for axes, (measure, label) in zip(panels, AXES.items(), strict=True):
            axes.axhline(percent(plain, measure), color=MUTED, linestyle="--", linewidth=1)
            axes.annotate(
                "plain", (0, percent(plain, measure)), xytext=(2, 3), textcoords="offset points", fontsize=6, color=INK
            )
            for method, (name, color, marker) in BOUGHT.items():
                parts = [
                    line
                    for line in lines.values()
                    if (line.cell.method, line.cell.blend) == (method, WEIGHT)
                    and line.cell.budget.startswith(("all", "share"))
                ]
                points = sorted((dollars_of(line.row) or 0.0, percent(line, measure)) for line in parts)
                look = {"marker": marker, "markersize": 4, "linewidth": 1, "color": color}
                axes.plot(*zip(*points, strict=True), label=name, **look)
            axes.set(xlabel="dollars at list prices", ylabel=label)
        low, high = panels[0].get_ylim()
        middle = percent(plain, "kept")
        panels[1].set_ylim(middle - (high - low) / 2, middle + (high - low) / 2)  # both have one scale
        panels[1].legend(fontsize=6, loc="upper right")
    save(figure, DOCS / "images" / "money.png")


if __name__ == "__main__":
    main()
