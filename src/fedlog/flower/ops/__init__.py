"""The operator's tasks: start processes, register sites, run the demo."""
