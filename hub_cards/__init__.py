"""Templates of dataset cards and model cards, which `repair_hf.hub` fills."""
