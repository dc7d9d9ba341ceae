"""What only a GPU shows; skipped where TensorFlow sees none."""
