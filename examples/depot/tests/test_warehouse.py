import pytest

from depot import Depot, Order
from depot.discounts import discount
from depot.stock import NotInStock


@pytest.fixture
def depot(request):
    return Depot.from_csv(request.config.rootpath / "stock.csv")


def test_an_invoice_adds_articles_and_postage(depot):
    invoice = depot.quote(Order.of({"mug": 4, "lamp": 1}))
    assert (invoice.articles, invoice.postage, invoice.parcels) == (8_100, 690, 1)
    assert invoice.total == 8_790


def test_one_mug_goes_as_the_smallest_parcel(depot):
    # 350 g and 150 g of wrapping: 500 g to the gram.
    assert depot.quote(Order.of({"mug": 1})).postage == 390


def test_full_parcels_are_still_taken(depot):
    # Nineteen books and a mug: 10,000 g with the wrapping.
    invoice = depot.quote(Order.of({"book": 19, "mug": 1}, country="FR"))
    assert (invoice.parcels, invoice.postage) == (1, 1_990)


def test_many_pieces_are_cheaper(depot):
    assert depot.quote(Order.of({"mug": 10})).discount == 270
    assert [discount(10_000, pieces) for pieces in (9, 10, 20, 50)] == [0, 300, 700, 1_200]


def test_shipping_takes_the_articles_from_the_stock(depot):
    depot.ship(Order.of({"mug": 4, "book": 2}))
    assert (depot.stock.count("mug"), depot.stock.count("book")) == (36, 23)


def test_an_order_that_cannot_be_filled_takes_nothing(depot):
    with pytest.raises(NotInStock):
        depot.ship(Order.of({"mug": 1, "chair": 4}))
    assert depot.stock.count("mug") == 40


def test_orders_without_pieces_are_refused():
    with pytest.raises(ValueError, match="at least one line"):
        Order.of({})
    with pytest.raises(ValueError, match="at least 1"):
        Order.of({"mug": 0})
