"""The study: methods and seeds on the same data, compared in one table. Start reading at `run.py`."""
