"""The shop's pages, with the demo's page in front."""

from django.urls import path
from shop.urls import urlpatterns as pages_of_the_shop

from demo import buttons

urlpatterns = [
    path("", buttons.index, name="index"),
    path("press/<slug:name>", buttons.press, name="press"),
    *pages_of_the_shop,
]
