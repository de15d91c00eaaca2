"""Noise with a stated guarantee: budgets and calibration, releases as data, mechanisms, and the secure sum."""
