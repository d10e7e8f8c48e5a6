"""Commands that keep an installation: the server, tokens, templates, models, triggers, the audit."""
