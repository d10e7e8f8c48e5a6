"""What is wrong with a record that people wrote, as one sentence: the same by every door it comes in."""

import msgspec

ATTEMPTS = "$.attempts"


def describe(error: msgspec.MsgspecError) -> str:
    """Where a record is wrong and what was expected there. Values that were sent are not repeated."""
    message, _, path = str(error).partition(" - at ")
    if not isinstance(error, msgspec.ValidationError):
        return f"The request is not JSON: {message}."
    where = path.strip("`") or "$"
    if message.startswith(("Expected", "Object missing required field")):
        return f"At {where}: {message}."
    if message.startswith("Object contains unknown field"):
        known = ": an attempt has model, temperature, share and hint" if where.startswith(ATTEMPTS) else ""
        return f"At {where}: there is a field that is not known here{known}."
    if message.startswith("Invalid enum value"):
        return f"At {where}: the value is not one of those allowed."
    return f"At {where}: the value is not valid."
