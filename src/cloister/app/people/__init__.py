"""People: logins at a provider of the organisation, projects with members, and links that share one run."""
