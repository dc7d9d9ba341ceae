"""Placement: the devices of towers, and what lives on them between two steps."""
