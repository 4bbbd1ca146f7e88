"""The (q, gt, fp, edit) dataset."""
