"""Methods against each other on one environment: several seeds, equal tokens and equal tool calls, intervals."""
