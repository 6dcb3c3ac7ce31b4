"""A Django project with django-tenants. The outbox is in SHARED_APPS only, as documented."""

from __future__ import annotations

import os

from tests.proj.settings import database_settings

SECRET_KEY = "tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SHARED_APPS = [
    "django_tenants",
    "tests.integration.tenants.customers",
    "django_integration",
]
TENANT_APPS = ["django.contrib.contenttypes"]
INSTALLED_APPS = [*SHARED_APPS, *TENANT_APPS]
TENANT_MODEL = "customers.Client"
TENANT_DOMAIN_MODEL = "customers.Domain"
DATABASE_ROUTERS = ["django_tenants.routers.TenantSyncRouter"]
DATABASES = {
    "default": {
        # A database of this run's own: pytest-django creates and drops `test_<NAME>`.
        **database_settings("postgresql", f"celery_outbox_tenants_{os.getpid()}"),
        "ENGINE": "django_tenants.postgresql_backend",
    }
}
