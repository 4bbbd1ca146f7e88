"""Any dual encoder: preprocessing, embeddings, cached pixels, blends."""
