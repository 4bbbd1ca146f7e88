"""One example of each page, with long ids, Japanese and Arabic captions, and empty tables; and what to read in it."""

import json
import shutil
from pathlib import Path

from datasets import Dataset

from repair_hf.analysis.grids import draw_grids
from repair_hf.analysis.pages import gallery, render
from repair_hf.analysis.record_sample import RecordSample, sample_records
from repair_hf.cli.main import main
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records

LONG = "holiday-photographs/" + "IMG_20240817_193355_" * 6 + ".jpg"
ODD = ["日本語のキャプション：公園で犬と遊ぶ二人の子供" * 3, "طفلان يلعبان مع كلب في الحديقة الكبيرة", "x" * 200]
# Texts whose contrast with what lies behind them is below 4.5, by the formula of WCAG 2.
FAINT = """() => {
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = color => color.map(value => value / 255)
    .map(value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const [r, g, b, alpha = 1] = parts(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return [r, g, b];
      if (alpha > 0) throw new Error(`${at.tagName} is half transparent`);
    }
    return [255, 255, 255];
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), faint = [];
  while (texts.nextNode()) {
    const text = texts.currentNode, node = text.parentElement;
    if (!text.data.trim() || !node.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const pair = [parts(getComputedStyle(node).color).slice(0, 3), behind(node)].map(light).sort((a, b) => b - a);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)}: ${text.data.trim().slice(0, 50)}`);
  }
  return faint;
}"""


def write_pages(folder: Path, records_folder: Path, pairs: Pairs, records: Dataset) -> dict[str, Path]:
    """Write all static pages; return their paths by name."""
    run, empty = shutil.copytree(records_folder, folder / "run"), folder / "empty"
    shares = dict.fromkeys(("i2t_R@1", "t2i_R@1", "contrast_caption", "web_t2i_R@1"), 0.5)
    own = shares | {
        "intervals": dict.fromkeys(shares, [0.25, 0.75]),
        "random": shares,
        "n_images": 1000,
        "split": "test",
    }
    gain = {"difference": 0.5, "low": 0.25, "high": 0.75}
    gains, means = dict.fromkeys(shares, gain), dict.fromkeys(("mean_R@1", "kept_R@1", "contrast"), gain)
    repair = {"model": LONG, "reference": "plain", "queries": {"t2i": {"repaired": 1}}, "verdict": "yes"}
    repair |= {"differences": gains, "summary": means}
    (run / "evaluate").mkdir()
    for name, content in {
        "versions.json": {"command": "evaluate"},
        "summary.json": {},
        "metrics.json": dict.fromkeys(("base", "plain", LONG), own),
        "differences.json": {"reference": "base", "differences": {}, "repair": [repair]},
    }.items():
        (run / "evaluate" / name).write_text(json.dumps(content))
    no_rows = (Dataset.from_dict(dict.fromkeys(kind, []), features=kind) for kind in (FEATURES, DROPPED_FEATURES))
    save_records(empty, *no_rows)
    for place in (run, empty):
        assert main(["analyze", str(place)]) == 0
    rows = [odd(row, text) for row, text in zip(sample_records(records, n=6).rows, 2 * ODD, strict=True)]
    mined = [row | {"margin": 0.125} for row in rows]
    questions = ["question", "direction", "failures", "of", "share"], [["Are both right?", "t2i", "1", "2", "0.500"]]
    tables = [("Is a repair worth it?", questions, "Counted among all failures.")]
    (folder / "show.html").write_text(gallery(RecordSample(rows, {"t2i": 3, "i2t": 3})))
    (folder / "mined.html").write_text(gallery(RecordSample(mined, {"t2i": 3, "i2t": 3}, "mined", tables)))
    (folder / "grids.html").write_text(render("grids.html", grids=draw_grids(records, pairs, n=2, anchor="any").grids))
    reports = {f"report-{place.name}": place / "report" / "report.html" for place in (run, empty)}
    return reports | {name: folder / f"{name}.html" for name in ("show", "mined", "grids")}


def odd(row: dict, text: str) -> dict:
    """A record with a long id, an odd caption and candidates."""
    kinds = ("q_text",) if row["direction"] == "t2i" else ("gt_text", "fp_text", "edit_text")
    seen = {"candidate_similarities": [0.9, None, 0.7], "candidate": 0, "edit_instruction": text}
    return row | dict.fromkeys(kinds, text) | dict.fromkeys(("q_id", "gt_id", "fp_id"), LONG) | seen
