"""How fast the parts are, each measured beside the least that could do its work."""
