"""What a first look at mined failures says beside the failures: what share fails, and what their repair costs."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from repair_hf.analysis.costs import items_of, list_prices
from repair_hf.analysis.mined import Mined
from repair_hf.analysis.options import PriceOptions
from repair_hf.analysis.report import Finding
from repair_hf.analysis.tables import SIDES, percent
from repair_hf.llm.cost import add_up, format_dollars
from repair_hf.mining.failures import load_failures
from repair_hf.mining.false_positives import summarize
from repair_hf.records.columns import DIRECTIONS
from repair_hf.runtime.files import read_json
from repair_hf.synthesis.estimate import Rehearsal, estimate_run, rehearse
from repair_hf.synthesis.options import EditorOptions, LLMOptions, RepairOptions
from repair_hf.synthesis.record_builder import RecordBuilder
from repair_hf.synthesis.sources import SourceImages

LIMITS = (100, 1000)  # failures of each direction, as `synthesize --limit` counts them


def missed(mined: Mined) -> Finding:
    """Count the queries that fail, by direction, and the images of equal pixels."""
    rows = [
        (SIDES[direction], counts["queries"], f"{counts['failed']:,} ({percent(counts['failed'], counts['queries'])})")
        for direction, counts in summarize(load_failures(mined.folder)).items()
    ]
    file = mined.folder / "summary.json"
    alike = read_json(file).get("images_alike", {}) if file.is_file() else {}
    note = (
        "A query fails if a false positive ranks above, or ties with, every annotated answer. "
        f"{alike.get('equal_pixels', 0):,} images have a copy of equal pixels, which counts as right."
    )
    return Finding("missed", "What fails", note, pd.DataFrame(rows, columns=["direction", "queries", "failed"]))


def price(mined: Mined, options: PriceOptions) -> Finding:
    """Price the repair of 100 and of 1,000 failures of each direction, or of all if there are fewer.

    Raises:
        UserError: If the LLM or the editor is no model.
    """
    llm, editor = LLMOptions(options.llm), EditorOptions(options.editor)
    failures = load_failures(mined.folder)
    builder = RecordBuilder(mined.pairs, SourceImages(mined.pairs.images))
    rehearsal = rehearse(builder, failures, llm.llm, RepairOptions())
    mined_of_each = Counter(failures["direction"])
    columns = {}
    for limit in LIMITS:
        count = {direction: min(limit, mined_of_each[direction]) for direction in DIRECTIONS}
        name = "all" if sum(count.values()) == len(failures) else f"{limit:,} of each"
        columns[name] = _column(rehearsal, count, llm, editor)
    labels = ["T2I failures", "I2T failures", "LLM calls", "images", llm.llm, editor.editor, "in all"]
    note = (
        "List prices, at most: as if every failure passed the audit. A model on your own machine costs its time. A "
        "reasoning model writes several times as much (`--reasoning-effort`)."
    )
    return Finding("price", "What a repair costs", note, pd.DataFrame({"": labels} | columns))


def _column(rehearsal: Rehearsal, count: dict[str, int], llm: LLMOptions, editor: EditorOptions) -> list[str]:
    """Return failures of each direction, calls, images and dollars."""
    token_price, image_price = list_prices(llm, editor)
    stages = estimate_run(rehearsal, count, RepairOptions(), price=token_price, image_price=image_price)
    texts, images = items_of(stages, llm, editor)
    numbers = [*count.values(), texts.number, images.number]
    dollars = [texts.dollars, images.dollars, add_up([texts.dollars, images.dollars])]
    return [*(f"{number:,.0f}" for number in numbers), *map(format_dollars, dollars)]
