"""Templates of the cards that `repair-hf push` writes; `repair_hf.hub` fills them."""
