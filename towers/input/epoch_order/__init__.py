"""The order of an epoch: which example comes at which position."""
