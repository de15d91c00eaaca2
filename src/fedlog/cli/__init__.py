"""The command line: one module for each command, or a few for a large one."""
