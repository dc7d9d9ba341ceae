"""A sample of Fashion-MNIST: files alone."""
