"""The settings of a run (data, training, privacy, execution), each stated once, and how open ones are filled in."""
