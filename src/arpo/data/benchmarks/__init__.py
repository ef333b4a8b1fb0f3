"""The public question sets: a registry, and readers for local files and the hub."""
