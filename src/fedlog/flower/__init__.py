"""Federations over real machines, with Flower: processes, certificates, keys, and the apps that call our engine."""
