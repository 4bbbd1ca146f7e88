"""Exact ranking of images against captions, and the false positives in it."""
