"""File systems in memory and faulty ones."""
