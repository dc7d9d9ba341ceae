"""Folders: files in a known layout, as the splits of a data set."""
