"""What every entry of a run's log has in common."""

import msgspec


class Body(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """What happened. The tag is the class name."""
