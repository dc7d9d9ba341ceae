"""Stepping: one call of the session, and what watches it."""
