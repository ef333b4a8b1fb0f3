"""Measurements: what the policy update costs, in counted work, seconds and bytes. Knows no rollout."""
