"""Recipes that are shipped with the package; `repair_hf.runtime.recipes` finds them."""
