"""Heads that are solved from sums: each a pure function of moments that any number of sites have added up."""
