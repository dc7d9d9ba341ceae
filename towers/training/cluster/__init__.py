"""Cluster: this process among the workers that train together."""
