"""The study: methods x seeds on one dataset, into one table."""
