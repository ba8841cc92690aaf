"""Processes to be killed, containers, commands, and measurements of them."""
