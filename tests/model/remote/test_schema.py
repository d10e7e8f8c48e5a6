"""Whether a value fits a JSON schema."""

import pytest

from cloister.model.remote.wire_formats import problem

SHAPE: dict[str, object] = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "kind": {"const": "x"},
    },
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "value",
    [{"n": 1}, {"n": 1, "tags": ["a", "b"]}, {"n": 0, "either": None}, {"n": 0, "either": "s", "kind": "x"}],
)
def test_a_valid_value_has_no_problem(value: object) -> None:
    assert problem(value, SHAPE) is None


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ([], "$ is not of type object"),
        ({}, "$.n is missing"),
        ({"n": True}, "$.n is not of type integer"),
        ({"n": 1.5}, "$.n is not of type integer"),
        ({"n": 1, "tags": ["a", 2]}, "$.tags[1] is not of type string"),
        ({"n": 1, "either": 3}, "$.either matches none of 2 forms"),
        ({"n": 1, "kind": "y"}, "$.kind is not 'x'"),
        ({"n": 1, "other": 1}, "$ has the unknown field 'other'"),
    ],
)
def test_an_invalid_value_is_reported_with_its_place(value: object, where: str) -> None:
    assert problem(value, SHAPE) == where
