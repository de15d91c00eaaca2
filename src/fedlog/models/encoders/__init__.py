"""Frozen encoders: from raw records to features, computed once per record and kept."""
