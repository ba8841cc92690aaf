"""Checks of what must always hold of a store and its archive, and repairs."""
