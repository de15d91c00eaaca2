"""The committed results as tables, figures and pages, beside the results of the paper."""
