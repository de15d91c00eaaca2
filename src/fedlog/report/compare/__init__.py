"""Show a comparison of methods as tables, a figure and a page."""
