"""Graph: tools for any graph, with towers or without."""
