"""A session: a program's graph running, step by step."""
