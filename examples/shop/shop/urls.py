from django.contrib import admin
from django.urls import path
from orders import views

urlpatterns = [
    path("", views.index, name="index"),
    path("order", views.order, name="order"),
    path("order-that-fails", views.order_that_fails, name="order-that-fails"),
    path("admin/", admin.site.urls),
]
