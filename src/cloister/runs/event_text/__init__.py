"""The text of events: a run's log as lines for people. Pure; the terminal and the API use it."""
