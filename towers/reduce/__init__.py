"""Reduce: from the gradients of towers and workers to those of the global batch."""
