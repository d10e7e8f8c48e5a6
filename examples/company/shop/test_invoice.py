from invoice import total


def test_an_invoice_has_the_tax_of_its_country():
    assert total(7) == "11.90 EUR"
