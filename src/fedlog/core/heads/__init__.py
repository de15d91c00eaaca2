"""Heads that are solved from sums: each is a pure function of moments, which sites can add up."""
