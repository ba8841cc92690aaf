"""Deliveries to consumer groups, above committed offsets: acknowledged one by one, retried, delayed, given up."""
