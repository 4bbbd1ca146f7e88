"""The files of a push: a parcel for a repository of the Hub, with its card."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal

import pyarrow.compute as pc

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.encoder.models import ADAPTER, MODEL_FILES, base_of, has_file
from repair_hf.hub.record_card import dataset_card
from repair_hf.hub.rendering import STAGE_FILES, StageFolder, own_file
from repair_hf.records.dataset import load_dropped, load_records, save_records
from repair_hf.runtime.files import intact
from repair_hf.runtime.options import UserError

logger = logging.getLogger(__name__)

WEIGHT_FILES = ("adapter_*", "model*.safetensors", "model*.safetensors.index.json", *STAGE_FILES)
RECORD_FILES = ("records/*.parquet", "dropped/*.parquet", "samples/*.png", *STAGE_FILES)


@dataclass(frozen=True)
class Parcel:
    """The files of a push."""

    kind: Literal["dataset", "model"]
    files: dict[str, Path | bytes]  # path in the repository -> file, or its content
    replaces: Sequence[str]  # patterns; files of earlier pushes that match and are not sent again are deleted

    @property
    def card(self) -> str:
        content = self.files["README.md"]
        return content.decode() if isinstance(content, bytes) else content.read_text(encoding="utf-8")

    @property
    def sizes(self) -> dict[str, int]:
        return {
            path: len(content) if isinstance(content, bytes) else content.stat().st_size
            for path, content in self.files.items()
        }


def pack_records(
    folder: str | Path,
    repo: str,
    *,
    scratch: str | Path,
    embed_source_images: bool = True,
    license: str | None = None,
    judgements: Sequence[str | Path] = (),
) -> Parcel:
    """Collect a folder of records. New files are written to the folder `scratch`, which must outlive the parcel."""
    folder = Path(folder)
    if not (folder / "README.md").is_file() or not any(folder.glob("records/*.parquet")):
        raise UserError(f"{folder} holds no records to push; give a folder that `repair-hf synthesize` has finished.")
    _parquet_of(folder)
    records, dropped, data = load_records(folder), load_dropped(folder), folder
    if not embed_source_images:
        data = Path(scratch) / "records"
        save_records(data, records, dropped, embed_source_images=False)
        records = load_records(data)
    for name in (column for column in records.column_names if column.endswith("_image")):
        cells = records.data.column(name)
        if pc.struct_field(cells, "bytes").null_count > cells.null_count:
            raise UserError(f"{folder} gives images of `{name}` as paths; save the records with their bytes.")
    with intact(folder, "Make the records again, or delete its summary.json"):
        card, pictures = dataset_card(folder, data, repo, records, dropped, license=license, judgements=judgements)
        files: dict[str, Path | bytes] = {"README.md": card.encode(), **StageFolder.of(folder).files()}
    return Parcel("dataset", {**files, **_parquet_of(data), **pictures}, RECORD_FILES)


def _parquet_of(folder: Path) -> dict[str, Path]:
    names = [path.relative_to(folder).as_posix() for pattern in RECORD_FILES[:2] for path in folder.glob(pattern)]
    return {name: own_file(folder, name) for name in sorted(names)}


def pack_model(
    folder: str | Path,
    repo: str,
    *,
    scratch: str | Path,
    results: str | Path | None = None,
    license: str | None = None,
) -> Parcel:
    """Collect a trained encoder with its processor; see `pack_records`."""
    from repair_hf.hub.model_card import model_card  # imports the Trainer, which takes seconds

    folder = Path(folder)
    is_adapter, files = has_file(str(folder), ADAPTER), _model_files(folder)
    if not {"config.json", ADAPTER} & files.keys() or not any(name.endswith(".safetensors") for name in files):
        raise UserError(f"{folder} holds no model to push; give a folder that `repair-hf train` has finished.")
    encoder = DualEncoder.from_pretrained(folder, device="cpu")  # an error if it is damaged
    if is_adapter and Path(base := base_of(folder)[0]).exists():
        logger.warning("The adapter's base, %s, is not on the Hub; base and adapter are pushed as one model.", base)
        is_adapter, merged = False, Path(scratch) / "merged"
        encoder.model.save_pretrained(merged)
        encoder.preprocessor.save_pretrained(merged)
        files = _model_files(merged)
    kind = {"model_type": encoder.model.config.model_type, "is_adapter": is_adapter}
    with intact(folder, "Train again, or delete its summary.json and trainer_state.json"):
        card = model_card(folder, repo, results=results, license=license, **kind)
        files |= {"README.md": card.encode(), **StageFolder.of(folder).files()}
    return Parcel("model", files, WEIGHT_FILES)


def _model_files(folder: Path) -> dict[str, Path | bytes]:
    return {
        path.name: own_file(folder, path.name)
        for path in sorted(folder.glob("*"))
        if path.is_file() and any(fnmatch(path.name, pattern) for pattern in MODEL_FILES)
    }
