"""Plain models that answers are compared with."""
