"""From a task to a tree: scheduling, entropy, branching and budget, free of any engine and any tool."""
