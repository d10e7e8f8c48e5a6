"""What a repository needs to run its checks: toolchains, packages, services, and why. Pure; runs nothing."""
