"""Ask a model by id: prompts, ledger, prices, limits, batches."""
