"""The sorted segment: written, read, checked, written again and put back."""
