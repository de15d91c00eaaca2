"""The adapter to Flower: processes, certificates and keys around it, and thin apps over the engine's rounds."""
