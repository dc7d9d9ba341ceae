"""Update: from gradients to new weights, or to none if something is not finite."""
