"""DECIDE: layered rules to allow, deny or ask, with the rule that decided. Pure."""
