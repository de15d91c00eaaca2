"""Attacks that test whether the privacy guarantees of fedlog hold."""
