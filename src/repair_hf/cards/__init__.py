"""Cards of what is pushed to the Hub: of records, of a model.

In:  the folder of a stage, with what it wrote down about itself.
Out: Markdown with the header that the Hub reads. What was not measured or not written down is said to be so.
"""
