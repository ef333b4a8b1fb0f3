"""Tools of MCP servers as tools of a run, and a run's tools as an MCP server. Needs the extra `mcp`."""
