"""The depot itself: takes an order out of the stock, packs it and writes the invoice."""

from dataclasses import dataclass

from depot.discounts import discount
from depot.parcels import gross, pack
from depot.rates import postage
from depot.stock import Stock


@dataclass(frozen=True)
class Invoice:
    articles: int
    discount: int
    postage: int
    parcels: int

    @property
    def total(self):
        return self.articles - self.discount + self.postage


class Depot:
    def __init__(self, stock):
        self.stock = stock

    @classmethod
    def from_csv(cls, path):
        return cls(Stock.read(path))

    def quote(self, order):
        """The invoice that the order would have; the stock stays as it is."""
        articles = [(self.stock.article(sku), count) for sku, count in order.lines.items()]
        cents = sum(article.cents * count for article, count in articles)
        parcels = pack([article.grams for article, count in articles for _ in range(count)])
        fees = sum(postage(gross(parcel), order.country) for parcel in parcels)
        return Invoice(cents, discount(cents, order.pieces()), fees, len(parcels))

    def ship(self, order):
        invoice = self.quote(order)
        for sku, count in order.lines.items():
            if self.stock.count(sku) < count:
                self.stock.take(sku, count)  # says what is missing, before anything is taken
        for sku, count in order.lines.items():
            self.stock.take(sku, count)
        return invoice
