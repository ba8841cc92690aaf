"""The unarchived tail of a log in the bucket: what ``durability=archived`` waits for."""
