"""Ask a model by id: prompts, journal, prices, limits, batches."""
