"""Stock, orders and parcels of a small warehouse."""

from depot.orders import Order
from depot.warehouse import Depot

__all__ = ["Depot", "Order"]
