"""Another harness, a program inside the sandbox, driven over ACP, the Agent Client Protocol."""
