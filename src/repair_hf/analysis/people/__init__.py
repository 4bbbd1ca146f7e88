"""A page on which people judge failures and edits, and what their answers say."""
