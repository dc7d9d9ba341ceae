"""Checkpoints: files that outlive the process, their history and their lock."""
