from __future__ import annotations

from django.db import models
from django_tenants.models import DomainMixin, TenantMixin


class Tenant(TenantMixin):  # type: ignore[misc]
    auto_create_schema = True
    name = models.CharField(max_length=40)

    def __str__(self) -> str:
        return str(self.name)


class Domain(DomainMixin):  # type: ignore[misc]
    """Where a tenant is served."""
