"""Held-out evaluation and the intervals that go with every figure."""
