"""Personalised federated classification by sufficient statistics."""

__version__ = "0.1.0"
