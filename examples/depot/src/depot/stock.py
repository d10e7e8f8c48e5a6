"""What is on the shelves."""

import csv
from dataclasses import dataclass
from pathlib import Path


class NotInStock(Exception):
    """There is less of it than was ordered."""


@dataclass(frozen=True)
class Article:
    sku: str
    cents: int
    grams: int


class Stock:
    def __init__(self):
        self._articles = {}
        self._counts = {}

    @classmethod
    def read(cls, path):
        stock = cls()
        with Path(path).open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                article = Article(row["sku"], int(row["cents"]), int(row["grams"]))
                stock.add(article, int(row["count"]))
        return stock

    def add(self, article, count):
        self._articles[article.sku] = article
        self._counts[article.sku] = self._counts.get(article.sku, 0) + count

    def article(self, sku):
        if sku not in self._articles:
            raise NotInStock(f"no article {sku}")
        return self._articles[sku]

    def count(self, sku):
        return self._counts.get(sku, 0)

    def take(self, sku, count):
        left = self.count(sku) - count
        if left < 0:
            raise NotInStock(f"{count} of {sku} ordered, {self.count(sku)} there")
        self._counts[sku] = left
