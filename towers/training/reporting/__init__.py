"""Reporting: what a run shows while it runs, and what it leaves behind."""
