"""A site's work on one message."""
