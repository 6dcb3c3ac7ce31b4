"""Searching and filtering in the admin with text that would do harm as SQL."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import reverse

from django_integration.models import CeleryOutbox
from tests.integration.admin import project
from tests.security.test_sql import HOSTILE

PAGES = [
    "admin:celery_outbox_celeryoutbox_changelist",
    "admin:celery_outbox_celeryoutboxdeadletter_changelist",
]


@pytest.fixture
def client(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.mark.parametrize(
    "text", [text for text in HOSTILE if len(text) < 500 and "\ud800" not in text]
)
@pytest.mark.parametrize("page", PAGES)
def test_search(client: Client, page: str, text: str) -> None:
    with transaction.atomic():
        project.charge_card.delay(7)
        project.app.send_task(text, task_id="hostile")
    answer = client.get(reverse(page), {"q": text})
    assert answer.status_code == 200
    assert b"<script>alert(1)</script>" not in answer.content
    assert CeleryOutbox.objects.count() == 2


@pytest.mark.parametrize("name", ["名前", "%s'", "nul\x00"])
@pytest.mark.parametrize("state", ["", "waiting"])
def test_a_task_is_found_by_its_name_whatever_it_is(client: Client, name: str, state: str) -> None:
    with transaction.atomic():
        project.charge_card.delay(7)
        project.app.send_task(name, task_id="found")
    answer = client.get(reverse(PAGES[0]), {"task_name": name, "state": state})
    assert [row.task_id for row in answer.context["cl"].result_list] == ["found"]


@pytest.mark.parametrize("text", ["x'; DROP TABLE celery_outbox; --", "%s", "nul\x00"])
@pytest.mark.parametrize("name", ["task_name", "state", "p", "o"])
def test_filters(client: Client, name: str, text: str) -> None:
    with transaction.atomic():
        project.charge_card.delay(7)
    answer = client.get(reverse(PAGES[0]), {name: text})
    assert answer.status_code in {200, 302}
    assert CeleryOutbox.objects.count() == 1
