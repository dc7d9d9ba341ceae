"""Training: the loop around the towers, its settings, what it shows and what it saves."""
