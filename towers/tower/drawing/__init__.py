"""How a model draws random numbers: by the places of examples."""
