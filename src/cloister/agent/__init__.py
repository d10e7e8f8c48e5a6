"""THE LOOP: events to messages, tools, turns, attempts."""
