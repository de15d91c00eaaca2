"""The committed results as tables, figures and pages, beside the figures of the paper."""
