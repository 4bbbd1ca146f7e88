"""What was mined, repaired and gained, as tables and pictures."""
