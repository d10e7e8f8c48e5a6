"""The tiers on an OCI runtime: container and gVisor."""
