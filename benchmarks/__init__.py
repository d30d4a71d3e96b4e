"""Measurements of this project's own speed, and of others beside it. Each prints medians and ratios of one run."""
