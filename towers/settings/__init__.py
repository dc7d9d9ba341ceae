"""Settings: the table, the kinds of values, and what goes together."""
