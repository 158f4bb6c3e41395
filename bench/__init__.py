"""Benchmarks: apart from the tests, medians and ratios measured in one run."""
