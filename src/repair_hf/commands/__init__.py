"""One module per command. Each turns options into calls of the layers below, and prints; it computes nothing itself."""
