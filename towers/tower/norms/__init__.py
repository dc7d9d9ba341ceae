"""Batch normalisation by layers of others: their moments become those of all towers."""
