"""Runs as data: specifications, presets, run folders, records."""
