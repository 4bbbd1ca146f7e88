"""Measures of a retriever, as flat dicts with readable keys."""
