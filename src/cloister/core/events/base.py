"""The base class of all events."""

import msgspec


class EventBody(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """What happened. The tag is the class name. New fields need defaults, so that old logs still load."""
