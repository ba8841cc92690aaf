"""What must always hold of a store and its archive, and what can be put right."""
