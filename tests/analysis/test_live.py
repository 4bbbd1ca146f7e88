"""The live view of a synthesis: while it runs, and at its end."""

import re

from repair_hf.analysis.live import LiveView
from repair_hf.pairs.dataset import load_pairs
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.sources import SourceImages
from repair_hf.synthesis.steps import Verdict


def repair(q: int, fp: int, edit: str | None) -> RepairTask:
    found = RepairTask(
        dict(direction="i2t", q=q, fp=fp, fp_score=0.5, fp_rank=1, gt_score=0.4, gt_rank=2),
        {"q": q, "gt": 0, "fp": fp},
    )
    found.verdict = Verdict(gt_reason="fits", gt_valid=True, fp_reason="<b>too blue</b>", fp_too_similar=edit is None)
    if edit is None:
        found.drop("fp_too_similar")
    found.candidates = [None, edit]
    return found


def view(pairs_folder, folder, **how) -> LiveView:
    pairs = load_pairs(pairs_folder, split="all")
    return LiveView(folder, RecordBuilder(pairs, SourceImages(pairs.images)), total=100, spent=lambda: 1.25, **how)


def words_of(page: str) -> str:
    return " ".join(re.sub("<[^>]*>", " ", page).split())


def test_a_run_under_way_can_be_looked_at(pairs_folder, tmp_path):
    live = view(pairs_folder, tmp_path, every=0)
    for number in range(14):
        live(repair(number % 12, 5 + number // 12, f"<script>{number}</script>"))
    live(repair(3, 7, None))
    page = (tmp_path / "live.html").read_text()
    assert "15 of 100 failures" in page and "$1.25" in page and "at this pace" in page
    assert "edited 0 14" in words_of(page) and "fp too similar 0 1" in words_of(page)
    assert page.count('<article class="card">') == 6 and page.count('<img src="data:') == 6
    shown = page.replace("<ins>", "").replace("</ins>", "")
    assert "&lt;script&gt;13&lt;/script&gt;" in shown and "<script>" not in page
    assert 'http-equiv="refresh"' in page


def test_the_page_of_a_run_that_has_ended_does_not_reload_itself(pairs_folder, tmp_path):
    live = view(pairs_folder, tmp_path)
    live(repair(1, 5, "an edit"))
    assert not (tmp_path / "live.html").exists()  # not due yet
    live.write(is_done=True)
    page = (tmp_path / "live.html").read_text()
    assert "edited 0 1" in words_of(page)
    assert "1 of 100 failures" in page and 'http-equiv="refresh"' not in page


def test_synthesize_leaves_it(toy_run):
    page = (toy_run / "records" / "live.html").read_text()
    done = re.search(r"([\d,]+) of ([\d,]+) failures", page)
    assert done[1] == done[2] and "Synthesis ended" in page
