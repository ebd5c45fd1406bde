"""Training of drafters: data from the target, features, recipe, export."""
