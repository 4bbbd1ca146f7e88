"""Draw some records, their training grids, or dropped or mined failures, as one page."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from repair_hf.analysis.checked import checked_in, describe_checked
from repair_hf.analysis.first_look import missed, price
from repair_hf.analysis.grids import GridSample, draw_grids
from repair_hf.analysis.mined import is_mined, load_mined, questions, sample_failures
from repair_hf.analysis.options import ShowOptions
from repair_hf.analysis.pages import check_page, gallery, render
from repair_hf.analysis.record_sample import RecordSample, sample_records
from repair_hf.analysis.run_data import PairsPlace, moved_pairs, recorded_pairs
from repair_hf.records.dataset import load_dropped, load_records
from repair_hf.runtime.options import UserError, fill
from repair_hf.runtime.run_folder import write_atomically


def show(
    records: str | Path, output: str | Path | None = None, *, pairs: PairsPlace = None, **options: Any
) -> RecordSample | GridSample:
    """Draw some records, their training grids, or dropped or mined failures, as `repair-hf show` does.

    Args:
        records: Folder or Hub id of records, or a folder of `repair-hf mine`.
        output: Page (.html) to write; see `sheet_path` for the default.
        pairs: The pairs of the records, or where they are now; by default what the run records.
        options: Options of `repair-hf show`, such as `n=20` or `direction="t2i"`.

    Returns:
        What was drawn: `rows`, and how many were `available` in each direction; with `anchor` the `grids`.

    Raises:
        UserError: If there is nothing to draw, or an option is not valid.

    Example:
        >>> show("runs/records", "sheet.html", n=20, error_type="Count")
    """
    path = sheet_path(records, output)
    check_page(path)
    (wanted,) = fill([ShowOptions], options | {"output": str(path)}, "show")
    sample: RecordSample | GridSample
    if is_mined(records):
        sample = _of_mine(str(records), wanted, pairs)
        page = gallery(sample)
    elif wanted.anchor is not None:
        sample = _grids_of(str(records), wanted, pairs)
        page = render("grids.html", grids=sample.grids)
    else:
        sample = _of_records(str(records), wanted, pairs)
        page = gallery(sample, checked=describe_checked(checked_in([Path(records)])))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page)
    return sample


def sheet_path(records: str | Path, output: str | Path | None) -> Path:
    """Return where `show` writes: by default into the folder shown, or for the Hub into the current one."""
    return Path(records if Path(records).is_dir() else "", "sheet.html") if output is None else Path(output)


def _of_records(place: str, options: ShowOptions, pairs: PairsPlace) -> RecordSample:
    table, known = load_records(place) if options.dropped is None else load_dropped(place), moved_pairs(place, pairs)
    if options.dropped is not None and known is None:  # dropped failures hold no images
        with suppress(UserError):  # the pairs are not on record, or have moved: then ids stand for images
            known = recorded_pairs(place)
    return sample_records(
        table,
        n=options.n,
        direction=options.direction,
        error_type=options.error_type,
        reason=options.dropped,
        pairs=known,
    )


def _grids_of(place: str, options: ShowOptions, pairs: PairsPlace) -> GridSample:
    assert options.anchor is not None, "only then grids are drawn"
    return draw_grids(load_records(place), recorded_pairs(place, pairs), n=options.n, anchor=options.anchor)


def _of_mine(place: str, options: ShowOptions, pairs: PairsPlace) -> RecordSample:
    for name in ("error_type", "dropped", "anchor"):
        value = getattr(options, name)
        if value is not None:
            raise UserError(f"`{name}` {value} is for records, and {place} holds mined failures. Leave it out.")
    mined = load_mined(place, pairs)
    sample = sample_failures(mined, n=options.n, direction=options.direction)
    findings = missed(mined), questions(mined), price(mined, options)
    return replace(sample, tables=[(finding.title, finding.rows, finding.note) for finding in findings])
