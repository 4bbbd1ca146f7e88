"""Fills without edits: false positives opposite annotated items, or opposite nothing."""

import numpy as np

from repair_hf.pairs.dataset import load_pairs
from repair_hf.study.cells import without_edits
from repair_hf.study.methods.hard_negatives import HardNegatives
from repair_hf.training.fills import PaperGrid


def test_without_edits_a_false_positive_is_opposite_its_annotation_or_nothing(pairs_folder, repaired):
    pairs, records = load_pairs(pairs_folder, split="all"), without_edits(repaired)
    grid, alone = PaperGrid(pairs, records), HardNegatives(pairs, records)
    assert grid.images is grid.texts is None and grid.edits_reachable() == {} and grid.share == alone.share > 0
    anchors = np.arange(24)
    images, texts = grid.draw(np.zeros(24, int), anchors)
    assert (images >= 0).tolist() == (texts >= 0).tolist()
    here = texts[:, 1:] >= 0
    assert (pairs.caption_image[texts[:, 1:][here]] == images[:, 1:][here]).all() and here.any(0).all()
    hard = alone.draw(np.zeros(24, int), anchors)
    assert (hard[0][:, 1] == -1).all() and (hard[1][:, 2] == -1).all()
    assert (hard[0][:, [0, 2]] == images[:, [0, 2]]).all() and (hard[1][:, :2] == texts[:, :2]).all()
