"""One way to do each small task with files and names: durable writes, locks, TOML, import by name, did-you-mean."""
