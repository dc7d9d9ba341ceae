"""Graph: what holds for any graph, with towers or without."""
