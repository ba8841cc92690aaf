"""Expiry of an archive: what may go by its age or size, and how it goes."""
