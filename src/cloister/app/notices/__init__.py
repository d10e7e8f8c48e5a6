"""Notices for people who are not watching: a run ended, asks, or is stuck."""
