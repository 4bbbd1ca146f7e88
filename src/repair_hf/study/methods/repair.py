"""RePair: both directions, or one of them alone. Data and loss are the pipeline's own: mine, synthesize, train."""

from __future__ import annotations

from repair_hf.study.methods.method import Repair

METHODS = (
    Repair("repair-i2t", directions=("i2t",), tuned_as="repair-i2t"),
    Repair("repair-t2i", directions=("t2i",), tuned_as="repair-t2i"),
    Repair("repair"),
)
