"""Dataset cards, model cards, and pushes to the Hugging Face Hub."""
