"""Launch: starts and ends several workers on one machine, without importing TensorFlow."""
