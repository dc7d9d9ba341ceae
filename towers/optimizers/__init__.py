"""Optimizers that TensorFlow 1 lacks: AdamW, LARS and LAMB, for weights of two or more dimensions.

Biases and the scales of normalisation, of one dimension, neither decay nor have a trust ratio.
"""
