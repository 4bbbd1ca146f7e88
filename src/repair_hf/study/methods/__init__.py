"""The methods that the study compares, one file per method."""
