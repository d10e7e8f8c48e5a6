"""GIT and its hosts: clone, branch, bundle."""
