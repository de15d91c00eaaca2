"""Timings, each with a committed record and the command that made it."""
