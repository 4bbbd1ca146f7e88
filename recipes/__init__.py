"""Recipes that are shipped with the package; `repair_hf.runtime.command_line` finds them."""
