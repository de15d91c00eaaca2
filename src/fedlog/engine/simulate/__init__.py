"""Simulate a whole federation on one machine."""
