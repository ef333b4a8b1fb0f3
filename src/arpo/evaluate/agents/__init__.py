"""Ways to answer a question with one and the same engine and tools: the policy's own loop and the usual baselines."""
