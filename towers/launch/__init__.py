"""Launch: several workers on one machine, started, told apart and ended together; without
TensorFlow.
"""
