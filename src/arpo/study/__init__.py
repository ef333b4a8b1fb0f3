"""What finished rollout trees tell: entropy after tool results, what branches were worth, what calls cost."""
