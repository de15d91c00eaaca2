"""Noise with a stated guarantee: budgets, calibration, the record of releases, mechanisms, and secure sums."""
