"""Tools of MCP servers, and our tools as one."""
