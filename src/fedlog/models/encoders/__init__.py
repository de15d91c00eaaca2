"""Frozen encoders from raw records to features, which are computed once for each record and cached."""
