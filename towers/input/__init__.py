"""Input: from the examples of a split to the batch of each tower."""
