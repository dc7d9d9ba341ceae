"""Batch normalisation over towers: by the own layer, and by layers of others."""
