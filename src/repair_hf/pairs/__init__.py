"""Images, captions, and which belong together."""
