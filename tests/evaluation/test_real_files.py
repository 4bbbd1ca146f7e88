"""The benchmarks' own files, where they are: they are not shipped, and are named by environment variables."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from repair_hf.evaluation.benchmark_metrics import SUGARCREPE as COUNTS
from repair_hf.evaluation.benchmarks import load_benchmark
from repair_hf.pairs.annotations import load_annotations
from repair_hf.pairs.problems import Problems
from repair_hf.runtime.options import UserError

SUGARCREPE = os.environ.get("REPAIR_HF_SUGARCREPE")
COCO_CAPTIONS = os.environ.get("REPAIR_HF_COCO_CAPTIONS")


@pytest.mark.skipif(not SUGARCREPE, reason="set REPAIR_HF_SUGARCREPE to the folder of SugarCrepe's seven files")
def test_sugarcrepe_has_its_published_cases(tmp_path):
    files = {name: json.loads((Path(SUGARCREPE) / f"{name}.json").read_text()) for name in COUNTS}
    photographs = {row["filename"] for rows in files.values() for row in rows.values()}
    with pytest.raises(UserError, match="1,560 of 1,560 photographs"):
        load_benchmark("sugarcrepe", SUGARCREPE, [tmp_path])
    for name in photographs:
        (tmp_path / name).touch()  # looked for, not opened
    cases = load_benchmark("sugarcrepe", SUGARCREPE, [tmp_path])
    sizes = cases.benchmark, len(cases), len(set(cases.case_ids)), len(cases.pictures)
    assert sizes == ("sugarcrepe", 7511, 7511, 1560)
    assert Counter(cases.groups) == {name: len(rows) for name, rows in files.items()} == COUNTS
    for case_id, (true, wrong), photograph in zip(cases.case_ids, cases.caption, cases.picture_ids, strict=True):
        category, _, number = case_id.partition("/")
        row = files[category][number]
        expected = row["caption"], row["negative_caption"], row["filename"]
        assert (cases.captions[true], cases.captions[wrong], photograph) == expected


@pytest.mark.skipif(not COCO_CAPTIONS, reason="set REPAIR_HF_COCO_CAPTIONS to COCO's captions_val2017.json")
def test_coco_has_its_published_captions(tmp_path):
    problems = Problems()
    rows = load_annotations(Path(COCO_CAPTIONS), str(tmp_path), problems)
    assert not problems.found()
    counts = [len(captions) for captions in rows["captions"]]
    assert (len(counts), sum(counts), min(counts), max(counts)) == (5000, 25014, 5, 7)
    assert len(set(rows["image"])) == 5000
