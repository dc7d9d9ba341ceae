"""Saving: checkpoints, the history beside them, and the lock of their folder."""
