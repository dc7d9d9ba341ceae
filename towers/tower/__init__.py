"""Tower: one copy of the model on its device, and what makes it exact."""
