"""Django settings of the outbox worker."""

from __future__ import annotations

import json
import os

SECRET_KEY = "canvas"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_integration"]
DATABASES = {"default": json.loads(os.environ.get("CANVAS_DATABASE", "{}"))}
