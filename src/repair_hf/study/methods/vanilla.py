"""Vanilla: fine-tuning on the pairs alone. Nothing is made; the loss is symmetric InfoNCE over the batch."""

from __future__ import annotations

from repair_hf.study.methods.method import Baseline

METHODS = (Baseline("vanilla"),)
