"""One failure becomes one record: audit, instruct, edit, select."""
