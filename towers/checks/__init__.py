"""Checks: whether towers are one tower, and whether a graph loses batches."""
