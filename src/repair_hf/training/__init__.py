"""The pairs of a step, losses, trainer."""
