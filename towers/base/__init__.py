"""Base: what every room needs and what needs no TensorFlow."""
