"""Source files as syntax trees, with one vocabulary over Python, JavaScript, TypeScript and Go. Pure.

The source is hostile: trees are walked without recursion, and all lists are bounded.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cache, cached_property
from importlib import import_module
from typing import NamedTuple

from tree_sitter import Language as TreeLanguage
from tree_sitter import Node, Parser

from cloister.core.text import lines_of
from cloister.harnesses.repair.api import Language
from cloister.harnesses.repair.suite import language_of

Cut = tuple[int, int, str]
"""Start and end in bytes, and the replacement."""
_NODES = 200_000
_POOL = 80
_SHORT = 40


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


class Words(NamedTuple):
    """How one language writes what the rules write."""

    no: str
    is_nothing: str
    is_something: str
    both: str
    either: str
    true: str
    false: str
    empties: tuple[str, ...]
    """Values that a guard may return."""
    end: str
    """What ends a statement."""
    add: str
    """How a value is added to the end of a list."""
    guard: str
    slices: tuple[str, ...]


WORDS: dict[Language, Words] = {
    "python": Words(
        *("not {}", "{} is None", "{} is not None", "and", "or", "True", "False"),
        ("None", "0", "False", "True", "[]", '""', "1", "{}"),
        *("", "{}.append({})", "if {0}:\n{2}    {1}", ("{}[1:]", "{}[:-1]")),
    ),
    "script": Words(
        *("!{}", "{} == null", "{} != null", "&&", "||", "true", "false"),
        ("null", "0", "false", "true", "[]", '""', "undefined", "1"),
        *(";", "{}.push({})", "if ({0}) {1}", ("{}.slice(1)", "{}.slice(0, -1)")),
    ),
    "go": Words(
        *("!{}", "{} == nil", "{} != nil", "&&", "||", "true", "false"),
        ("nil", "0", "false", "true", '""'),
        *("", "{0} = append({0}, {1})", "if {0} {{ {1} }}", ("{}[1:]", "{0}[:len({0})-1]")),
    ),
}

_GRAMMARS = {
    "py": "tree_sitter_python",
    **dict.fromkeys(("js", "cjs", "mjs", "jsx"), "tree_sitter_javascript"),
    **dict.fromkeys(("ts", "cts", "mts"), "tree_sitter_typescript:language_typescript"),
    "tsx": "tree_sitter_typescript:language_tsx",
    "go": "tree_sitter_go",
}
FUNCTIONS = _set(
    "function_definition function_declaration method_definition method_declaration arrow_function func_literal "
    "function_expression generator_function_declaration"
)
BLOCKS = _set("block module statement_block program statement_list source_file class_body")
BINARY = _set("binary_operator boolean_operator comparison_operator binary_expression")
CALLS = _set("call call_expression new_expression")
NAMES = _set("identifier")
MEMBERS = _set("attribute member_expression selector_expression")
NUMBERS = _set("integer float number int_literal float_literal")
STRINGS = _set("string interpreted_string_literal raw_string_literal")
LITERALS = NUMBERS | STRINGS | _set("true false none null nil undefined")
INDEXED = _set("subscript subscript_expression index_expression slice_expression")
LOOPS = _set("for_statement for_in_clause for_in_statement range_clause")
LISTS = _set("list array tuple dictionary object set")
NEGATIONS = _set("not_operator unary_expression unary_operator")
TERNARIES = _set("conditional_expression ternary_expression")
EXPRESSIONS = (
    BINARY
    | CALLS
    | NAMES
    | MEMBERS
    | LITERALS
    | INDEXED
    | LISTS
    | NEGATIONS
    | TERNARIES
    | _set(
        "parenthesized_expression await lambda list_comprehension generator_expression dictionary_comprehension"
    )
    | _set("set_comprehension template_string composite_literal this self")
)
CONDITIONAL = _set(
    "if_statement while_statement elif_clause do_statement for_statement for_clause assert_statement"
)
_UNCHANGED = _set("comment import_statement import_from_statement future_import_statement import_declaration")
_ASSIGNED = _set(
    "assignment augmented_assignment assignment_expression variable_declarator short_var_declaration"
)
_NO_VALUE = _set(
    "keyword_argument dotted_name import_statement import_from_statement type_identifier package_clause"
)


@cache
def _parser(ending: str) -> Parser:
    module, _, function = _GRAMMARS[ending].partition(":")
    made: object = getattr(import_module(module), function or "language")()
    return Parser(TreeLanguage(made))


def parses(path: str, source: str, text: str) -> bool:
    """False if a file no longer parses. The worker of a Python suite compiles candidates itself."""
    if language_of(path) in (None, "python"):
        return True
    parser = _parser(path.rpartition(".")[2])
    return not parser.parse(text.encode(errors="surrogatepass")).root_node.has_error or (
        parser.parse(source.encode(errors="surrogatepass")).root_node.has_error
    )


class Scope(NamedTuple):
    """What is in reach inside one function."""

    names: tuple[str, ...]
    """Variables and parameters, in the order of the text."""
    expressions: tuple[Node, ...]
    """Values that are read, one for each text, shortest first."""
    calls: tuple[str, ...]
    """Plain names that are called."""


class File:
    """One source file."""

    def __init__(self, path: str, text: str) -> None:
        language = language_of(path)
        if language is None:
            raise ValueError(f"no rules for {path}")
        self.path, self.language, self.words = path, language, WORDS[language]
        self.data = text.encode(errors="surrogatepass")
        self.lines = lines_of(text)
        self._parser = _parser(path.rpartition(".")[2])
        self.root = self._parser.parse(self.data).root_node
        self._scopes: dict[int, Scope] = {}

    def text(self, node: Node | None) -> str:
        return (
            "" if node is None else self.data[node.start_byte : node.end_byte].decode(errors="surrogatepass")
        )

    def replaced(self, whole: Node, part: Node, text: str) -> str:
        """The source of a node with another text in place of a part."""
        before = self.data[whole.start_byte : part.start_byte].decode(errors="surrogatepass")
        return before + text + self.data[part.end_byte : whole.end_byte].decode(errors="surrogatepass")

    def indent(self, node: Node) -> str | None:
        """The white space before a node on its line; None if other text is there."""
        line = self.data[self.data.rfind(b"\n", 0, node.start_byte) + 1 : node.start_byte]
        return None if line.strip() else line.decode()

    @cached_property
    def nodes(self) -> list[Node]:
        """All named nodes, in the order of the text."""
        return list(walk(self.root))

    @cached_property
    def statements(self) -> list[Node]:
        """Every statement, outer ones first."""
        return [
            node
            for node in self.nodes
            if node.parent is not None
            and node.parent.type in BLOCKS
            and node.type != "comment"
            and node.type not in BLOCKS
        ]

    @cached_property
    def at_import(self) -> list[Node]:
        """Statements that run when the file is imported, and definitions of functions."""
        found: list[Node] = []
        pending = [self.root]
        while pending:
            node = pending.pop()
            for child in node.named_children:
                if node.type in BLOCKS and child.type not in _UNCHANGED:
                    found.append(child)
                if child.type not in FUNCTIONS and child.type != "decorated_definition":
                    pending.append(child)
                elif (inner := child.child_by_field_name("definition")) and inner.type == "class_definition":
                    pending.append(inner)
        return found

    @cached_property
    def functions(self) -> dict[str, Node]:
        """The functions and methods by name."""
        found: dict[str, Node] = {}
        for node in self.nodes:
            name = node.child_by_field_name("name")
            if node.type in FUNCTIONS and name is not None:
                found.setdefault(self.text(name), node)
        return found

    @cached_property
    def returns(self) -> dict[int, tuple[str, ...]]:
        """How functions return plain values, by the node of the function; 0 has all."""
        found: dict[int, dict[str, None]] = {0: {}}
        for node in self.nodes:
            if node.type != "return_statement" or node.end_byte - node.start_byte > _SHORT:
                continue
            if not any(one.type in NAMES | MEMBERS | CALLS | BINARY for one in walk(node)):
                above = node.parent
                while above is not None and above.type not in FUNCTIONS:
                    above = above.parent
                text = self.text(node).rstrip("; ")
                found.setdefault(above.id if above is not None else 0, {})[text] = None
                found[0][text] = None
        return {function: tuple(texts) for function, texts in found.items()}

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """Literals of the file, the most frequent first."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            if node.type in NUMBERS | STRINGS and node.end_byte - node.start_byte < 60:
                text = self.text(node)
                counts[text] = counts.get(text, 0) + 1
        return tuple(sorted(counts, key=lambda text: (-counts[text], text)))

    @cached_property
    def members(self) -> dict[str, tuple[str, ...]]:
        """Attributes by the text of their object; the empty text has all."""
        found: dict[str, dict[str, None]] = {"": {}}
        for node in self.nodes:
            if node.type in MEMBERS:
                owner, name = member(node)
                if owner is not None and name is not None:
                    found.setdefault(self.text(owner), {})[self.text(name)] = None
                    found[""][self.text(name)] = None
        return {owner: tuple(names) for owner, names in found.items()}

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each name occurs."""
        return Counter(self.text(node) for node in self.nodes if node.type in NAMES)

    @cached_property
    def read_members(self) -> frozenset[str]:
        """Attributes that are read without a call."""
        return frozenset(
            self.text(member(node)[1])
            for node in self.nodes
            if node.type in MEMBERS
            and (above := node.parent) is not None
            and (above.type not in CALLS or above.child_by_field_name("function") != node)
        )

    @cached_property
    def decorators(self) -> tuple[str, ...]:
        """The decorators of the file, the most frequent first."""
        counts = Counter(self.text(node) for node in self.nodes if node.type == "decorator")
        return tuple(sorted(counts, key=lambda text: (-counts[text], text)))

    @cached_property
    def imported(self) -> frozenset[str]:
        """Names in `from … import …`."""
        return frozenset(
            self.text(one)
            for node in self.nodes
            if node.type == "import_from_statement"
            for one in walk(node)
            if one.type in NAMES
        )

    def scope(self, node: Node) -> Scope:
        """The scope of the outermost function around a node, or of the file."""
        around, inner = None, node.parent
        while inner is not None:
            around = inner if inner.type in FUNCTIONS else around
            inner = inner.parent
        top = around or self.root
        if top.id not in self._scopes:
            self._scopes[top.id] = self._scope(top)
        return self._scopes[top.id]

    def _scope(self, top: Node) -> Scope:
        names: dict[str, None] = {}
        values: dict[str, Node] = {}
        calls: dict[str, None] = {}
        for node in walk(top):
            if node.type in NAMES and not _is_label(node):
                names[self.text(node)] = None
            if (
                node.type in CALLS
                and (called := node.child_by_field_name("function"))
                and called.type in NAMES
            ):
                calls[self.text(called)] = None
            if node.type in EXPRESSIONS and is_value(node) and node.end_byte - node.start_byte < 60:
                values.setdefault(self.text(node), node)
        assigned = self._assigned(top)
        variables = [name for name in names if name not in calls or name in assigned]
        pool = sorted(values.values(), key=lambda node: (node.end_byte - node.start_byte, node.start_byte))
        return Scope(tuple(variables), tuple(pool[:_POOL]), tuple(calls))

    def _assigned(self, top: Node) -> frozenset[str]:
        found: set[str] = set()
        for node in walk(top):
            if node.type in _ASSIGNED and (
                left := node.child_by_field_name("left") or node.child_by_field_name("name")
            ):
                found.update(self.text(one) for one in walk(left) if one.type in NAMES)
        return frozenset(found)


def walk(top: Node) -> Iterator[Node]:
    """The named nodes below and with `top`, in the order of the text."""
    pending = [top]
    for _ in range(_NODES):
        if not pending:
            return
        node = pending.pop()
        yield node
        pending.extend(reversed(node.named_children))


def own(statement: Node) -> Iterator[Node]:
    """The nodes of a statement without those of the blocks inside it."""
    pending = [statement]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(child for child in reversed(node.named_children) if child.type not in BLOCKS)


def header_end(statement: Node) -> int:
    """The last line, from 1, that belongs to the statement itself and not to a block inside it."""
    for child in statement.named_children:
        if child.type in BLOCKS:
            return max(statement.start_point[0], child.start_point[0] - 1) + 1
    return statement.end_point[0] + 1


def member(node: Node) -> tuple[Node | None, Node | None]:
    """The object and the name of an attribute."""
    owner = node.child_by_field_name("object") or node.child_by_field_name("operand")
    name = next((n for n in map(node.child_by_field_name, ("attribute", "property", "field")) if n), None)
    return owner, name


def operation(node: Node) -> tuple[Node, Node, Node] | None:
    """Left side, operator and right side of a binary operation."""
    if node.type == "comparison_operator":
        parts = node.children
        return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None
    names = ("left", "operator", "right")
    left, operator, right = (node.child_by_field_name(name) for name in names)
    return (left, operator, right) if left and operator and right else None


def arguments(call: Node) -> list[Node]:
    """The positional arguments of a call."""
    given = call.child_by_field_name("arguments")
    if given is None:
        return []
    return [one for one in given.named_children if one.type not in ("keyword_argument", "comment")]


def _is_label(node: Node) -> bool:
    parent = node.parent
    if parent is None or parent.type in _NO_VALUE:
        return True
    if parent.type in MEMBERS:
        return member(parent)[1] == node
    return (
        parent.type in FUNCTIONS | _set("class_definition class_declaration")
        and parent.child_by_field_name("name") == node
    )


def is_value(node: Node) -> bool:
    """True if the node is an expression that is read: no target, no name of something, no type."""
    parent = node.parent
    if parent is None or node.type not in EXPRESSIONS:
        return False
    if node.type in NAMES and _is_label(node):
        return False
    if parent.type in _set(
        "parameters formal_parameters lambda_parameters parameter_declaration type typed_parameter decorator"
    ):
        return False
    if parent.type in _set(
        "string interpolation concatenated_string global_statement nonlocal_statement as_pattern_target"
    ):
        return False
    if parent.type in _set("for_in_clause for_statement for_in_statement range_clause") | _ASSIGNED:
        return parent.child_by_field_name("left") != node and parent.child_by_field_name("name") != node
    if parent.type in _set("default_parameter typed_default_parameter keyword_argument assignment_pattern"):
        return parent.child_by_field_name("name") != node and parent.child_by_field_name("left") != node
    if parent.type in _set("pattern_list tuple_pattern expression_list list_pattern list_splat_pattern"):
        above = parent.parent
        return above is None or above.child_by_field_name("left") != parent
    return not (parent.type == "expression_statement" and node.type in STRINGS)
