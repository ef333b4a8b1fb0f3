"""Sandboxes: where code that a policy wrote is run, and the tool that runs it."""
