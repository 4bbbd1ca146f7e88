"""The live view of a synthesis: a page that shows a bad run early enough to stop it.

The page is rewritten at most once a minute. The candidate to keep is chosen at the end; the page shows the first.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from repair_hf.analysis.pages import card, render
from repair_hf.llm.calls import format_dollars
from repair_hf.records.columns import DIRECTIONS, MODALITIES, REASONS, SOURCES
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.sources import UnreadableImage, open_picture

EVERY = 60.0  # seconds
WINDOW = 10  # pages over which the pace is taken
SHOWN = 6  # of each direction


class LiveView:
    """Count finished failures of `total`, and write the page when it is due.

    `spent` returns the dollars of this run so far, None if unknown.
    With several processes, the page shows the share of the first.
    """

    def __init__(
        self,
        folder: Path,
        builder: RecordBuilder,
        *,
        total: int,
        spent: Callable[[], float | None],
        every: float = EVERY,
    ) -> None:
        self.path, self.builder = folder / "live.html", builder
        self.total, self.spent, self.every = total, spent, every
        self.outcomes: Counter[tuple[str, str]] = Counter()  # of (direction, reason or "edited")
        self.last: dict[str, deque[RepairTask]] = {way: deque(maxlen=SHOWN) for way in DIRECTIONS}
        self._pace: deque[tuple[float, int]] = deque([(time.monotonic(), 0)], maxlen=WINDOW)

    def __call__(self, repair: RepairTask) -> None:
        self.outcomes[repair.direction, repair.reason or "edited"] += 1
        if repair.reason is None:
            self.last[repair.direction].append(repair)
        if time.monotonic() - self._pace[-1][0] >= self.every:
            self.write()

    def write(self, *, is_done: bool = False) -> None:
        """Write the page; the page of a run that `is_done` does not reload itself."""
        (then, before), done = self._pace[0], self.outcomes.total()
        pace = (done - before) / max(time.monotonic() - then, 1e-9)  # failures a second
        self._pace.append((time.monotonic(), done))
        facts = {
            "through": f"{done:,} of {self.total:,} failures",
            "pace": f"{60 * pace:,.0f} a minute",
            "paid in this run": format_dollars(self.spent()),
        }
        if pace and not is_done:
            facts["left"] = f"{timedelta(seconds=round((self.total - done) / pace))} at this pace"  # h:mm:ss
        reasons = [name for name in ("edited", *REASONS) if any(self.outcomes[way, name] for way in DIRECTIONS)]
        table = [
            (name.replace("_", " "), *(f"{self.outcomes[way, name]:,}" for way in DIRECTIONS)) for name in reasons
        ]
        page = render(
            "live.html",
            at=time.strftime("%Y-%m-%d %H:%M:%S %Z"),
            refresh=None if is_done else round(self.every),
            facts=facts,
            heads=["failures", *DIRECTIONS],
            table=table,
            cards=[card(self._row(repair)) for last in self.last.values() for repair in reversed(last)],
        )
        write_atomically(self.path, page)

    def _row(self, repair: RepairTask) -> dict[str, Any]:
        """Return an edited failure in the columns of a record."""
        row, kinds = self.builder.columns(repair), MODALITIES[repair.direction]
        edit = next(candidate for candidate in repair.candidates if candidate is not None)
        for role in SOURCES:
            if kinds[role] == "image":
                with suppress(UnreadableImage):
                    row[f"{role}_image"] = self.builder.sources.picture(repair.at[role])
        if kinds["edit"] == "image":
            row["edit_image"] = open_picture(edit.read_bytes())
        else:
            row["edit_text"] = edit
        return row
