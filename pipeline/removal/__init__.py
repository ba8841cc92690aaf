"""Erasure and expiry of an archive in bulk: planned and committed on the driver, carried out by executors."""
