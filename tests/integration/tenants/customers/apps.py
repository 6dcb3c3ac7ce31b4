from django.apps import AppConfig


class CustomersConfig(AppConfig):
    name = "tests.integration.tenants.customers"
    label = "customers"
