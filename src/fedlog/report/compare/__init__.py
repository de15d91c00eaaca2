"""A comparison of methods as tables, a figure and a page."""
