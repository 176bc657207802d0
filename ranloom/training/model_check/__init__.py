"""Exhaustive check of the training protocol: every interleaving of a small run."""
