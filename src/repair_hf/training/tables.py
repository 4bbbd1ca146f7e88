"""What a training reads: the grids of pairs and records, and the images and captions behind them."""

from __future__ import annotations

import logging
from dataclasses import asdict

import numpy as np
from datasets import Dataset

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.pixel_store import PixelStore
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.options import UserError
from repair_hf.training.collation import DecodedImages, GridCollator, Pixels, TrainingRows
from repair_hf.training.config import RepairConfig
from repair_hf.training.grids import Grids
from repair_hf.training.hyperparameters import GridRule, rule_of

logger = logging.getLogger(__name__)

ENOUGH = 0.5  # of the edits that can train; below it, a warning


def grids_of(
    pairs: Pairs,
    records: Dataset | None,
    config: RepairConfig,
    known: tuple[np.ndarray, np.ndarray] | None = None,
) -> Grids:
    """Create the grids that a configuration trains on; `known` is as for `Grids`.

    Raises:
        UserError: If it asks for batches of neighbours, and there are no records.
    """
    records = None if config.negatives == "none" else records
    if records is None and config.batches == "neighbours":
        raise UserError(
            "`batches` neighbours puts pairs together with their false positives, which only records name. Give "
            "records, or leave it out."
        )
    rule = asdict(rule_of(vars(config)))
    seed = config.seed if config.data_seed is None else config.data_seed
    grids = Grids(pairs, records, seed=seed, known=known, **rule)
    if config.process_index == 0:
        _log_reach(grids)
    return grids


def collator_of(encoder: DualEncoder, pairs: Pairs, data: TrainingRows, config: RepairConfig) -> GridCollator:
    """Create the collator of `data`, whose first images are those of `pairs`."""
    tables = [pixels_of(pairs.images, "image", encoder, config)]
    if data.edited_images is not None:
        tables.append(pixels_of(data.edited_images, "edit_image", encoder, config))
    return GridCollator(encoder.preprocessor, tables, data.captions, chunk_size=config.chunk_size)


def pixels_of(images: Dataset, column: str, encoder: DualEncoder, config: RepairConfig) -> Pixels:
    """Open a column of images, decoded once into a file with `cache_images`."""
    if not config.cache_images:
        return DecodedImages(images, column, encoder.preprocessor)
    return PixelStore(images, column, encoder.preprocessor, config.cache_folder, draft=config.draft_jpegs)


def _log_reach(grids: Grids) -> None:
    """Log which edits can train, and warn if most cannot: they were paid for."""
    reach, default = grids.edits_reachable(), GridRule()
    if not reach:
        return
    shown = ", ".join(f"{share:.0%} {direction}" for direction, share in reach.items())
    logger.info("edits that training can use: %s", shown)
    if min(reach.values()) >= ENOUGH:
        return
    usual = asdict(default) | {"negatives": GridRule(grids=grids.rule.grids).negatives}
    changed = " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in asdict(grids.rule).items() if value != usual[name]
    )
    otherwise = ", ".join(f"{share:.0%} {direction}" for direction, share in grids.edits_reachable(default).items())
    logger.warning("Only %s of the edits can train. Leave out `%s` to use %s.", shown, changed, otherwise)
