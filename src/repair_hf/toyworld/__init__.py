"""A small closed world: scenes, pictures, captions, oracle, editor."""
