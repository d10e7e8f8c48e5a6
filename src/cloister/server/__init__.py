"""HTTP and WebSocket on loopback."""
