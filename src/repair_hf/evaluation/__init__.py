"""Metrics, confidence intervals, benchmarks."""
