"""The rollout tree inside verl: one leaf of a tree is one session of its agent loop."""
