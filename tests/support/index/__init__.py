"""Index files and objects, what goes into them and what searches of them cost."""
