"""Batch normalisation over towers: how moments are joined, also those of layers of others."""
