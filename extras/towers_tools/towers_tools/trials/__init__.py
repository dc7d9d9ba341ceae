"""Trials: short runs of the program in processes of their own, to find settings."""
