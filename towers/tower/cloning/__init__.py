"""Clones: further towers copied from a built one, without another call of the model."""
