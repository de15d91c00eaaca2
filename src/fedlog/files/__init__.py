"""Files and names, the same way everywhere: durable writes, locks, TOML, import by name, did-you-mean."""
