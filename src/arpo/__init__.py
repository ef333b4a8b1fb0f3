"""arpo: reinforcement learning for tool-using language models with entropy-guided rollout trees."""

__version__ = "0.1.0"
