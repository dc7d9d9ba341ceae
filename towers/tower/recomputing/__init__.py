"""Recomputing: activations that the backward pass computes again, to save memory."""
