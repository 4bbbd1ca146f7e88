"""Any dual encoder: preprocessing, embeddings, cached pixels, export."""
