"""Formats: bytes of one kind of file, to and from numpy."""
