"""The tasks of the people who operate a server or a site: start processes, register sites, watch runs, run the demo."""
