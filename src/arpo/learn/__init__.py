"""From scored trees to a gradient: rows, losses, the update, checkpoints. Knows no rollout."""
