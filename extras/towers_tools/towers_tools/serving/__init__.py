"""Serving: a trained model as a SavedModel, and what it predicts of files."""
