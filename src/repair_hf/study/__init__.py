"""Compare methods over several seeds in one table."""
