"""How a stage is configured, where it writes, and who shares its work."""
