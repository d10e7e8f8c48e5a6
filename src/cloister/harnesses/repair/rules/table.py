"""The table of all rules, with their priors.

The priors began as estimates. Six were moved about half the way to what `bench/parts/priors.py` counted on training bugs; the
others are right so rarely among mutations that its count says nothing. Never change one by the test set of `bench/repair.py`.
"""

from cloister.harnesses.repair.rules import anomalies, names, operators, statements
from cloister.harnesses.repair.rules.api import Rule

RULES: tuple[Rule, ...] = (
    Rule("boundary of a comparison", 0.9, "expression", operators.boundary),
    Rule("comparison operator", 0.6, "expression", operators.comparison, decay=0.25),
    Rule("arithmetic operator", 0.7, "expression", operators.arithmetic, decay=0.25),
    Rule("and, or", 0.9, "expression", operators.logical),
    Rule("missing or extra not", 0.6, "expression", operators.negation),
    Rule("off by one", 0.6, "expression", operators.off_by_one),
    Rule("one more or less", 0.35, "expression", operators.one_more),
    Rule("sign", 0.3, "expression", operators.unary, decay=0.25),
    Rule("range", 0.6, "expression", operators.ranges, decay=0.15),
    Rule("swapped operands", 0.3, "expression", operators.operands),
    Rule("one side of an operation", 0.25, "expression", operators.one_side),
    Rule("slice", 0.2, "expression", operators.slices),
    Rule("assignment operator", 0.4, "expression", operators.assignment_operator, decay=0.2),
    Rule("true, false", 0.95, "expression", names.boolean),
    Rule("number", 0.4, "expression", names.number, decay=0.15),
    Rule("text", 0.4, "expression", names.string, decay=0.2),
    Rule("variable", 0.35, "expression", names.variable, decay=0.1),
    Rule("attribute", 0.3, "expression", names.attribute, decay=0.1),
    Rule("called function", 0.35, "expression", names.called, decay=0.15),
    Rule("swapped arguments", 0.5, "expression", names.swapped, decay=0.15),
    Rule("extra argument", 0.1, "expression", names.argument),
    Rule("call for its argument", 0.2, "expression", names.unwrapped, decay=0.2),
    Rule("missing call", 0.12, "expression", names.wrapped, decay=0.1),
    Rule("list", 0.3, "expression", names.literal_list, decay=0.15),
    Rule("negated comparison", 0.98, "expression", anomalies.negated_comparison),
    Rule("loop over nothing", 0.9, "expression", anomalies.looped, decay=0.04),
    Rule("another expression", 0.08, "expression", names.transplanted, decay=0.02),
    Rule("offset", 0.08, "expression", names.offset, decay=0.04),
    Rule("missing check for nothing", 0.3, "expression", names.missing_check, decay=0.15),
    Rule("missing condition", 0.12, "expression", names.more_condition, decay=0.05),
    Rule("type of an exception", 0.5, "expression", statements.error_type, decay=0.15),
    Rule("missing return", 0.25, "statement", statements.returned, decay=0.2),
    Rule("break, continue, return, yield", 0.7, "statement", statements.return_yield),
    Rule("decorator that the function needs", 0.9, "statement", anomalies.asked_decorator, decay=0.3),
    Rule("missing decorator", 0.35, "statement", statements.decorator, decay=0.2),
    Rule("moved statement", 0.15, "statement", statements.moved),
    Rule("guard of a sibling", 0.15, "statement", statements.learned_guard),
    Rule("guard", 0.05, "statement", statements.guard, decay=0.04),
    Rule("missing statement", 0.04, "statement", statements.added, decay=0.005),
    Rule("repeated statement", 0.06, "statement", statements.repeated, decay=0.05),
    Rule("deleted statement", 0.3, "statement", statements.deleted, ("deletes_code",)),
    Rule("special case", 0.2, "statement", statements.special_case, ("special_case",)),
)
