"""Tables, plots, styles and templates: what every page is made of."""
