"""Update: from gradients to new weights, unless a value is not finite."""
