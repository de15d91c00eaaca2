"""Heads that are solved from sums: each is a pure function of moments, and the moments of clients can be added."""
