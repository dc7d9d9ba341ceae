"""Reporting: what a run prints, draws and writes about itself."""
