"""BM25: which texts fit a query best. Pure; for tools, documents and skills, which are at most some thousands."""

import math
import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_K1, _B = 1.2, 0.75
_TEXT_CHARS = 200_000
"""What is read of one text."""


def words(text: str) -> list[str]:
    """The words of a text, small; `openIssue` and `open_issue` are two words. A plural counts as its singular."""
    found = _WORD.findall(_CAMEL.sub(" ", text[:_TEXT_CHARS]).casefold())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] != "s" else word for word in found]


class Ranking:
    """Texts, prepared for many queries."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._counts = [Counter(words(text)) for text in texts]
        self._lengths = [count.total() for count in self._counts]
        self._mean = sum(self._lengths) / len(texts) if any(self._lengths) else 1.0
        self._with: Counter[str] = Counter(word for count in self._counts for word in count)

    def best(self, query: str, most: int) -> list[tuple[int, float]]:
        """The positions of the texts that fit best, with their scores, best first. Without a common word: none."""
        scores = [(self._score(set(words(query)), at), at) for at in range(len(self._counts))]
        found = sorted((one for one in scores if one[0] > 0), key=lambda one: (-one[0], one[1]))
        return [(at, score) for score, at in found[:most]]

    def _score(self, asked: set[str], at: int) -> float:
        count, length = self._counts[at], self._lengths[at]
        norm = _K1 * (1 - _B + _B * length / self._mean)
        return sum(
            self._rarity(word) * count[word] * (_K1 + 1) / (count[word] + norm)
            for word in sorted(asked)
            if word in count
        )

    def _rarity(self, word: str) -> float:
        known = self._with[word]
        return math.log(1 + (len(self._counts) - known + 0.5) / (known + 0.5))
