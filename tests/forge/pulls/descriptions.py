"""The published OpenAPI description of a forge, and what an exchange with our server has that it does not allow.

`CLOISTER_FORGE_DESCRIPTIONS` names a directory with `github`, `gitlab`, `gitea` and `bitbucket`, each `.json` or
`.yaml`. They belong to the forges and are not part of this repository.
"""

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import yaml

DIRECTORY = os.environ.get("CLOISTER_FORGE_DESCRIPTIONS", "")
_DEPTH = 40
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "file": (str,),
}
Schema = dict[str, Any]
_GAPS: dict[str, tuple[str, ...]] = {
    "gitlab": (
        # It describes a list by its entries, most values as strings, and no value as one that may be null.
        r"answer.* not of type (string|object)$",
        r"answer\S* is null$",
        r"/notes: there is no such operation$",
        r"members/all/\S+: the status 404 ",
    ),
    "bitbucket": (
        # Pages and filters are described once for all lists, in prose; so is the text of a pull request.
        r"the query has no (page|pagelen|q|sort)$",
        r"(body|answer)\S* has no description$",
        # Every object has a type in answers; requests do without.
        r"body\S* needs type$",
        # Newer than the copies of the description that can be had.
        r" has no draft$",
        r"/permissions-config/users/\S+: there is no such operation$",
        r"/permissions/repositories/\S+: the status 403 ",
    ),
}
"""Kind → what its description is known to lack, although the forge documents it elsewhere."""


@cache
def description(kind: str) -> "Description | None":
    """The description of this kind of forge; None where the directory has none."""
    for suffix in (".json", ".yaml") if DIRECTORY else ():
        path = Path(DIRECTORY, kind + suffix)
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            document = json.loads(text) if suffix == ".json" else yaml.load(text, loader)
            return Description(document, _GAPS.get(kind, ()))
    return None


class Description:
    """Swagger 2 or OpenAPI 3."""

    def __init__(self, document: Schema, gaps: tuple[str, ...] = ()) -> None:
        self._document, self._gaps = document, re.compile("|".join(gaps) or "$.")
        self._paths = [
            (re.compile(re.sub(r"\\\{[^/]+?\\\}", "([^/]+)", re.escape(path))), path, operations)
            for path, operations in document["paths"].items()
        ]
        self.operations: set[str] = set()
        """Those that were used."""

    def wrong(
        self, method: str, path: str, query: dict[str, str], body: Schema, status: int, answer: object
    ) -> list[str]:
        """Everything in an exchange that the description does not allow; `path` is below the API's address."""
        found = self._wrong(method, path, query, body, status, answer)
        return [one for one in found if not self._gaps.search(one)]

    def _wrong(
        self, method: str, path: str, query: dict[str, str], body: Schema, status: int, answer: object
    ) -> list[str]:
        found = self._operation(method, path)
        if found is None:
            return [f"{method} {path}: there is no such operation"]
        name, operation, shared = found
        self.operations.add(name)
        parameters = [cast(Schema, self._seen(one)) for one in (*shared, *operation.get("parameters", ()))]
        problems = [
            *self._query([one for one in parameters if one["in"] == "query"], query),
            *self._body(operation, parameters, body),
            *self._answer(operation, status, answer),
        ]
        return [f"{name}: {one}" for one in problems]

    def _operation(self, method: str, path: str) -> tuple[str, Schema, list[Schema]] | None:
        fits = [
            (template.count("{"), template, operations)
            for where in (path, f"/api/v4{path}")
            for pattern, template, operations in self._paths
            if pattern.fullmatch(where) and method.lower() in operations
        ]
        if not fits:
            return None
        _, template, operations = min(fits, key=lambda fit: fit[:2])
        return f"{method} {template}", operations[method.lower()], operations.get("parameters", [])

    def _seen(self, schema: Any) -> Any:
        """`schema` itself, or what it refers to."""
        found = schema
        while isinstance(found, dict) and "$ref" in found:
            target: Any = self._document
            for step in cast(str, found["$ref"]).removeprefix("#/").split("/"):
                target = target[unquote(step).replace("~1", "/").replace("~0", "~")]
            found = target
        return cast(Any, found)

    def _query(self, parameters: list[Schema], query: dict[str, str]) -> list[str]:
        known = {one["name"]: one for one in parameters}
        problems = [f"the query has no {name}" for name in query if name not in known]
        problems += [
            f"the query needs {one['name']}"
            for one in parameters
            if one.get("required") and one["name"] not in query
        ]
        for name in query.keys() & known.keys():
            schema = self._seen(known[name].get("schema", known[name]))
            value: object = query[name]
            if schema.get("type") in ("integer", "number") and query[name].lstrip("-").isdigit():
                value = int(query[name])
            if schema.get("type") == "boolean" and query[name] in ("true", "false", "0", "1"):
                value = True
            problems += (
                self.invalid(schema, value, f"query {name}", strict=True)
                if schema.get("type") != "array"
                else []
            )
        return problems

    def _body(self, operation: Schema, parameters: list[Schema], body: Schema) -> list[str]:
        content = self._seen(operation.get("requestBody", {})).get("content", {})
        schema: Schema | None = None
        if content:
            schema = content.get("application/json", next(iter(content.values()))).get("schema")
        for one in parameters:
            schema = one["schema"] if one["in"] == "body" else schema
        fields = {one["name"]: one for one in parameters if one["in"] == "formData"}
        if fields:
            needed = [name for name, one in fields.items() if one.get("required")]
            schema = {"type": "object", "properties": fields, "required": needed}
        if schema is None:
            return ["a body is not described"] if body else []
        return self.invalid(schema, body, "body", strict=True)

    def _answer(self, operation: Schema, status: int, answer: object) -> list[str]:
        replies = operation["responses"]
        reply = replies.get(str(status)) or replies.get(status) or replies.get("default")
        if reply is None:
            return [f"the status {status} is not one of {sorted(map(str, replies))}"]
        reply = self._seen(reply)
        content = reply.get("content", {})
        schema = content.get("application/json", {}).get("schema") if content else reply.get("schema")
        if schema is None or isinstance(answer, str):
            return []
        return self.invalid(schema, answer, "answer", strict=False)

    def invalid(self, schema: Any, value: object, where: str, *, strict: bool, depth: int = 0) -> list[str]:
        """Every place where `value` does not fit. Names that are not described never fit; a missing one does unless `strict`."""
        schema = cast(Schema, self._seen(schema))
        if depth > _DEPTH or not schema:
            return []
        if value is None:
            optional = (
                schema.get("nullable")
                or schema.get("x-nullable")
                or "null" in _list(schema.get("type"))
                or "type" not in schema
            )
            return [] if optional else [f"{where} is null"]
        for word in ("anyOf", "oneOf"):
            if word in schema:
                ways = [
                    self.invalid(one, value, where, strict=strict, depth=depth + 1) for one in schema[word]
                ]
                rest = {name: one for name, one in schema.items() if name not in (word, "required")}
                if isinstance(value, dict) and "properties" not in rest and "allOf" not in rest:
                    return min(ways, key=len)
                return self.invalid(rest, cast(object, value), where, strict=strict, depth=depth + 1)
        kinds = [one for one in _list(schema.get("type")) if one != "null"]
        fits = [
            one
            for one in kinds
            if isinstance(value, _TYPES[one]) and (one == "boolean" or not isinstance(value, bool))
        ]
        if kinds and not fits:
            return [f"{where} is {value!r:.40} and not of type {'/'.join(kinds)}"]
        if "enum" in schema and value not in schema["enum"]:
            return [f"{where} is {value!r:.40} and not one of {schema['enum']}"]
        if isinstance(value, list):
            items = schema.get("items", {})
            return [
                problem
                for at, one in enumerate(cast(list[object], value))
                for problem in self.invalid(items, one, f"{where}[{at}]", strict=strict, depth=depth + 1)
            ]
        return (
            self._object(schema, cast(Schema, value), where, strict=strict, depth=depth)
            if isinstance(value, dict)
            else []
        )

    def _object(self, schema: Schema, value: Schema, where: str, *, strict: bool, depth: int) -> list[str]:
        known, needed, more = self._properties(schema)
        problems = [f"{where} needs {name}" for name in needed if strict and name not in value]
        for name, one in value.items():
            if name in known:
                problems += self.invalid(known[name], one, f"{where}.{name}", strict=strict, depth=depth + 1)
            elif known and not more:
                problems.append(f"{where} has no {name}")
        return problems

    def _properties(self, schema: Schema) -> tuple[Schema, list[str], bool]:
        schema = cast(Schema, self._seen(schema))
        known: Schema = dict(schema.get("properties", {}))
        needed: list[str] = [*schema.get("required", [])] if isinstance(schema.get("required"), list) else []
        more = isinstance(schema.get("additionalProperties"), dict)
        for part in schema.get("allOf", ()):
            inner, also, open_ = self._properties(part)
            known, needed, more = {**inner, **known}, [*needed, *also], more or open_
        return known, needed, more


def _list(found: Any) -> list[str]:
    return cast(list[str], found) if isinstance(found, list) else [found] if found else []
