"""Tools: what main.py does besides training."""
