"""Noise with a stated guarantee: budgets, calibration, the release log, mechanisms, and secure sums."""
