"""The table of all rules, with their priors.

The priors were set on the training sets of `bench/repair.py` and not on its test sets.
"""

from cloister.repair.rules import operators
from cloister.repair.rules.api import Rule

RULES: tuple[Rule, ...] = (
    Rule("boundary of a comparison", 0.9, "expression", operators.boundary),
    Rule("comparison operator", 0.7, "expression", operators.comparison, decay=0.25),
    Rule("arithmetic operator", 0.7, "expression", operators.arithmetic, decay=0.25),
    Rule("and, or", 0.8, "expression", operators.logical),
    Rule("missing or extra not", 0.6, "expression", operators.negation),
    Rule("off by one", 0.6, "expression", operators.off_by_one),
    Rule("range", 0.6, "expression", operators.ranges, decay=0.15),
    Rule("swapped operands", 0.3, "expression", operators.operands),
    Rule("one side of an operation", 0.25, "expression", operators.one_side),
    Rule("slice", 0.2, "expression", operators.slices),
    Rule("assignment operator", 0.4, "expression", operators.assignment_operator, decay=0.2),
)
