"""The paper's tables and figures as data, and the statistics over their cells."""
