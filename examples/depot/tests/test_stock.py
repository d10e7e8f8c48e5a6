import pytest

from depot.stock import Article, NotInStock, Stock


def test_what_was_added_can_be_taken():
    stock = Stock()
    stock.add(Article("mug", 900, 350), 2)
    stock.add(Article("mug", 900, 350), 1)
    stock.take("mug", 3)
    assert stock.count("mug") == 0


def test_more_than_there_is_cannot_be_taken():
    stock = Stock()
    stock.add(Article("mug", 900, 350), 2)
    with pytest.raises(NotInStock, match="3 of mug ordered, 2 there"):
        stock.take("mug", 3)


def test_unknown_articles_are_not_in_stock():
    with pytest.raises(NotInStock, match="no article sofa"):
        Stock().article("sofa")
