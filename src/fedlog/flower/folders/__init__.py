"""The folders of a federation: layout, certificates, keys, logs."""
