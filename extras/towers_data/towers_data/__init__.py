"""Towers data: readers of named data sets, and converters to TFRecords."""
