"""The application: settings, wiring and the verbs."""
