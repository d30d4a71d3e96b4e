"""Results of the literature, made again: what a paper says, what comes out here, and whether the two agree.

One result a file; `result` has what all share. docs/known_results.md says how each compares, and why it differs.
"""
