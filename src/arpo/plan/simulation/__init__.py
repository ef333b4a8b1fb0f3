"""The scheduler under a virtual clock: the real rollout code, a simulated engine and simulated tools."""
