"""Grids, losses, trainer."""
