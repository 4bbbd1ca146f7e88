"""Templates of the cards that `repair-hf push` writes; `repair_hf.cards` fills them."""
