"""The rules: small pure functions from one place of a syntax tree to other texts for it.

A rule is a function with `@rule(name, prior)`. A rule for expressions yields texts that replace the node. A rule for
statements yields cuts. The table is `RULES`, in `table.py`.
"""
