"""An order: which articles, how many, to which country."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Order:
    lines: dict = field(default_factory=dict)
    country: str = "DE"

    @classmethod
    def of(cls, lines, country="DE"):
        if not lines:
            raise ValueError("an order needs at least one line")
        if any(count < 1 for count in lines.values()):
            raise ValueError("an order line needs a count of at least 1")
        return cls(dict(lines), country)

    def pieces(self):
        return sum(self.lines.values())
