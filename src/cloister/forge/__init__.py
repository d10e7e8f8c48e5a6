"""GIT and its hosts: fetch, branch, deliver."""
