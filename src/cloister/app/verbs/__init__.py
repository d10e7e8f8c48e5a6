"""Everything a person can do: one typed interface, implemented in this process and over HTTP."""
