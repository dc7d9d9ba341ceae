"""Checks: whether towers are one tower."""
