"""The Django app of the tenants."""
