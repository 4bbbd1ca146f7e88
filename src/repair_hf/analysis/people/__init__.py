"""People judge failures and edits on a page; their answers become findings."""
