"""Erasure: what is hidden, masked and written again, and the receipt of it."""
