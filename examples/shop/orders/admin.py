from django.contrib import admin

from orders.models import Order, Receipt


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ["number", "placed_at"]


@admin.register(Receipt)
class ReceiptAdmin(admin.ModelAdmin):
    list_display = ["order_number", "order_exists", "runs", "written_at"]
