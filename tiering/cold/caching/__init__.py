"""What is kept of the archive in memory and on the local disk."""
