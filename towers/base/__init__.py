"""Base: what every other package needs, without TensorFlow."""
