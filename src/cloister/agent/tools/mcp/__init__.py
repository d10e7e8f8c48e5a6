"""MCP servers as tools: their declarations, connections to them, and their tools as tools of a run."""
