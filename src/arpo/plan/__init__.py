"""What a run would take on given hardware: estimates with their formulas, and a simulation of the rollout."""
