"""The `local` provider: this machine. What its container and microvm tiers share."""
