"""A view that calls a task; both say which request they belong to."""

from __future__ import annotations

from typing import Any

import structlog
from django.http import JsonResponse
from django.urls import path
from django_structlog.celery.steps import DjangoStructLogInitStep

from tests.acceptance.project.app import app, write

app.steps["worker"].add(DjangoStructLogInitStep)


@app.task(name="which_request", bind=True)
def which_request(self: Any) -> None:
    write(self.request.id, request_id())


def view(request: Any) -> JsonResponse:
    which_request.delay()
    return JsonResponse({"request_id": request_id()})


def request_id() -> str:
    return str(structlog.contextvars.get_contextvars().get("request_id"))


urlpatterns = [path("", view)]
