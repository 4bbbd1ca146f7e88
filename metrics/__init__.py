"""Modules for `evaluate.load` that are shipped with the package."""
