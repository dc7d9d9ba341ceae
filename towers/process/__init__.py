"""The process: the errors that end it, its signals, and the watch on its start."""
