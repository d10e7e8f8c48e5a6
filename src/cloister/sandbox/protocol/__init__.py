"""The framed protocol between the host and the guest."""
