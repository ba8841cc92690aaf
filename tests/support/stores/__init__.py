"""Whole stores, their settings and lives, and what must be true of them."""
