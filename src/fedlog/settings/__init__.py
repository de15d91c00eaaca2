"""The settings of a run, each stated once: data, training, privacy, execution, and what they resolve to."""
