"""A customer places an order. A task writes its receipt, which proves that the task ran."""

from django.db import models


class Order(models.Model):
    number = models.CharField(max_length=32, unique=True)
    placed_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.number


class Receipt(models.Model):
    """One per order number, however often the task runs."""

    order_number = models.CharField(max_length=32, unique=True)
    order_exists = models.BooleanField()
    runs = models.PositiveIntegerField(default=1)
    written_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"receipt for {self.order_number}"
