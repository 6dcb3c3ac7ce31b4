"""The admin in a real Chromium, against a live server and PostgreSQL.

With OUTBOX_SCREENSHOTS set to a folder, the pictures of the docs are taken on the way.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import transaction
from django.urls import reverse
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from celery_outbox_steps.fleet import (
    COOLING_DOWN,
    PAUSED,
    RELAYING,
    STANDING_BY,
    UNABLE_SECONDS,
    WAITING_FOR_BROKER,
)
from django_integration.admin import charts
from django_integration.models import (
    CeleryOutbox,
    CeleryOutboxDeadLetter,
    CeleryOutboxDelivery,
    CeleryOutboxPause,
    CeleryOutboxRelay,
)
from tests.integration.admin import project
from tests.integration.admin.cases.conftest import (
    DEAD,
    DELIVERIES,
    ERROR,
    OUTBOX,
    RELAYS,
    ago,
    ahead,
    backing_off,
    buried,
    dead_event,
    event,
    failed,
    gone,
    held_back,
    in_flight,
    outbox_store,
    paced,
    person,
    published,
    relay,
    scheduled,
    waiting,
)
from tests.services import programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.contrib.auth.models import User

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--lang=en", "--force-device-scale-factor=1",
)  # fmt: skip
DESKTOP = (1360, 1100)
LAPTOP = (1280, 900)
NARROW = (390, 1500)
REFUSED = "OperationalError: [Errno 111] Connection refused"

pytestmark = pytest.mark.django_db(transaction=True)


class Browser:
    """What a person does: open, read, choose, click."""

    def __init__(self, driver: webdriver.Chrome, server: str) -> None:
        self.driver = driver
        self._server = server

    def log_in(self, user: User) -> None:
        self.driver.delete_all_cookies()
        self.open("admin:login")
        self.find("#id_username").send_keys(user.username)
        self.find("#id_password").send_keys("pass")
        self.click("input[type=submit]")

    def open(self, page: str, query: str = "", args: Any = ()) -> None:
        self.driver.get(f"{self._server}{reverse(page, args=args)}{query}")

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector)]

    @property
    def text(self) -> str:
        return str(self.find("body").text)

    def click(self, selector: str) -> None:
        """Click what leads to another page, and wait until that is there."""
        old = self.find("html")
        self.find(selector).click()
        WebDriverWait(self.driver, 20).until(lambda _: _is_gone(old))
        WebDriverWait(self.driver, 20).until(
            lambda driver: driver.execute_script("return document.readyState") == "complete"
        )

    def choose(self, action: str, *rows: Any) -> None:
        """Tick rows, choose an action, and come to the confirmation."""
        for row in rows:
            self.find(f"input.action-select[value='{row.pk}']").click()
        Select(self.find("select[name=action]")).select_by_visible_text(action)
        self.click("button[name=index]")

    def confirm(self) -> None:
        self.click(".outbox-confirm input[type=submit]")

    def tiles(self) -> dict[str, str]:
        names, values = self.texts(".outbox-tile dt"), self.texts(".outbox-number")
        return dict(zip(names, values, strict=True))

    def settings(self, *, dark: bool = False, size: tuple[int, int] = DESKTOP) -> None:
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)

    def hurry(self) -> None:
        """Let the list reload itself after moments instead of seconds, and count its turns."""
        self.driver.execute_script("""
            const box = document.getElementById('outbox-refresh'), setLater = window.setTimeout;
            window.turns = 0;
            window.setTimeout = (...what) => { window.turns += 1; return setLater(...what); };
            box.dataset.seconds = 0.1;
            box.dispatchEvent(new Event('change'));""")

    def turns(self) -> int:
        return int(self.driver.execute_script("return window.turns"))

    def wait(self, condition: Callable[[], bool], message: str) -> None:
        WebDriverWait(self.driver, 20, poll_frequency=0.05).until(lambda _: condition(), message)

    def picture(self, name: str) -> None:
        folder = os.environ.get("OUTBOX_SCREENSHOTS")
        if folder:
            self.driver.save_screenshot(str(Path(folder) / f"{name}.png"))


def _is_gone(element: Any) -> bool:
    try:
        element.is_enabled()
    except Exception:
        return True
    return False


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = programs.require("chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(programs.require("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture
def browser(driver: webdriver.Chrome, live_server: Any) -> Browser:
    found = Browser(driver, live_server.url)
    found.settings()
    return found


def busy_shop() -> None:
    """A day in the life of an outbox, not its best one: the charge's exchange is missing."""
    mail, charge = "shop.tasks.send_receipt", "shop.tasks.charge_card"
    timeout = "OperationalError: the broker did not confirm in time"
    rows = []
    for number in range(6):
        since, due = ago(minutes=200 + 70 * number), ahead(minutes=7 * number + 2)
        tries = number % 3 + 2
        rows.append(partial(backing_off, created_at=since, due_at=due, retries=tries))
    for number in range(3):
        since, due = ago(minutes=40 + 8 * number), ahead(minutes=number + 1)
        failed = {"last_error": timeout, "retries": 1}
        rows.append(partial(backing_off, created_at=since, due_at=due, task_name=mail, **failed))
    for number in range(35):
        since = ago(minutes=(number * 37) % 59 if number < 20 else 49 * (number - 18))
        task = (mail, charge)[number % 3 == 0]
        due = ago(seconds=number / 3)
        rows.append(partial(waiting, created_at=since, due_at=due, task_name=task))
    for number in range(2):
        rows.append(partial(scheduled, due_at=ahead(hours=number + 5), task_name=mail))
    for number in range(11):
        holder = "worker-2:23:9f0c" if number % 3 == 0 else "worker-1:17:ab12"
        due = ago(seconds=number)
        rows.append(
            partial(
                in_flight,
                created_at=ago(seconds=50 * number),
                due_at=due,
                claimed_by=holder,
                claimed_until=ahead(seconds=50),
            )
        )
    random.Random(1).shuffle(rows)
    for row in rows:
        row()
    relay("worker-1", rate=212.4)
    relay("worker-2", rate=187.9)
    for number in range(8):
        dead = ago(minutes=9 * number * number + 4)
        buried(dead_at=dead, created_at=dead, task_name=(mail, charge)[number % 2])


def test_summary_numbers_in_light_dark_and_narrow(browser: Browser) -> None:
    busy_shop()
    browser.log_in(person(superuser=True))
    for name, look in {
        "admin-light": {}, "admin-dark": {"dark": True}, "admin-narrow": {"size": NARROW},
    }.items():  # fmt: skip
        browser.settings(**look)
        browser.open(OUTBOX)
        browser.picture(name)
        assert browser.tiles() == {
            "In the outbox": "57", "Waiting": "35", "Scheduled": "2", "In flight": "11",
            "Backing off": "9", "Failing": "9", "Dead letters": "8", "Published/min": "24,018",
        }  # fmt: skip
        assert "for up to" in browser.text
        _nothing_sticks_out(browser)
    for name, look in {
        "admin-dead-letters": {}, "admin-dead-letters-laptop": {"size": LAPTOP},
        "admin-dead-letters-narrow": {"size": NARROW},
    }.items():  # fmt: skip
        browser.settings(**look)
        browser.open(DEAD)
        browser.picture(name)
        assert len(browser.all(".action-select")) == 8
        _nothing_sticks_out(browser)
    browser.settings()
    browser.open(OUTBOX)
    relays = browser.all(".outbox-panels:last-child .outbox-panel:last-child tbody tr")
    assert [row.text.split()[:2] for row in relays] == [
        ["worker-1:17:ab12", "7"], ["worker-2:23:9f0c", "4"],
    ]  # fmt: skip


TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/shop/payments/tasks.py", line 41, in charge
    receipt = gateway.charge(order.total, idempotency_key=self.request.id)
  File "/srv/shop/payments/gateway.py", line 88, in charge
    raise CardDeclined(answer.reason)
payments.gateway.CardDeclined: insufficient funds
"""


def test_failed_tasks_beside_messages_that_could_not_be_published(browser: Browser) -> None:
    relay("worker-1", rate=0.4)
    for number in range(3):
        buried(dead_at=ago(minutes=20 * number + 5), task_name="shop.notifications.tasks.mail")
    reason = "CardDeclined: insufficient funds"
    failed = [
        buried(kind="task", failure_reason=reason, traceback=TRACEBACK, retries=4,
               dead_at=ago(minutes=7 * number + 3), created_at=ago(minutes=7 * number + 9),
               task_name="shop.payments.tasks.charge")
        for number in reversed(range(4))
    ]  # fmt: skip
    browser.log_in(person(superuser=True))
    browser.open(DEAD)
    assert len(browser.all(".action-select")) == 7
    browser.open(DEAD, "?kind=task")
    browser.picture("admin-failed-tasks")
    assert len(browser.all(".action-select")) == 4
    assert "insufficient funds" in browser.text
    _nothing_sticks_out(browser)
    browser.open("admin:celery_outbox_celeryoutboxdeadletter_change", args=[failed[0].pk])
    browser.picture("admin-failed-task")
    assert "receipt = gateway.charge(order.total" in browser.text
    _nothing_sticks_out(browser)


def _healthy() -> None:
    waiting(due_at=ago(seconds=3))
    relay("web-1", rate=41.2)
    relay("web-2", rate=38.0)
    for number in range(3, 21):
        relay(f"web-{number}", STANDING_BY, standing_by=True)


def _late_without_a_relay() -> None:
    waiting(due_at=ago(hours=3, seconds=20))
    CeleryOutboxRelay.objects.all().delete()
    gone("web-1", hours=3, seconds=10)


def _paused() -> None:
    CeleryOutbox.objects.all().delete()
    relay("web-1", PAUSED)
    outbox_store().pause("moving the orders to another broker", "ann@example.com")
    CeleryOutboxPause.objects.update(paused_at=ago(hours=2, seconds=5))


def _broker_away() -> None:
    outbox_store().resume()
    away = {"last_error": REFUSED, "counters": {UNABLE_SECONDS: 312}}
    relay("web-1", WAITING_FOR_BROKER, **away)


def _no_relay() -> None:
    CeleryOutboxRelay.objects.all().delete()


VERDICTS = {
    "healthy": (_healthy, "ok", "Healthy: 2 relays at work, 18 standing by"),
    "late": (
        _late_without_a_relay,
        "error",
        "Late: the oldest due message has waited 3 h; no relay has been seen for 3 h:"
        " start a worker with --outbox-relay",
    ),
    "paused": (
        _paused,
        "warning",
        "Paused for 2 h by ann@example.com: moving the orders to another broker",
    ),
    "broker-away": (
        _broker_away,
        "warning",
        f"The broker has been away for 5 min 12 s: {REFUSED}",
    ),
    "no-relay": (_no_relay, "warning", "No relay is running: start a worker with --outbox-relay"),
}


def test_the_verdict_in_each_state_in_light_dark_and_narrow(browser: Browser) -> None:
    browser.log_in(person(superuser=True))
    colours: dict[tuple[str, bool], set[tuple[str, str]]] = {}
    for name, (arrange, level, text) in VERDICTS.items():
        arrange()
        for look in ({}, {"dark": True}, {"size": NARROW}):
            browser.settings(**look)
            browser.open(OUTBOX)
            line = browser.find(".outbox-verdict")
            assert line.find_element(By.TAG_NAME, "span").text == text
            assert f"outbox-verdict-{level}" in line.get_attribute("class")
            colour = (
                line.value_of_css_property("border-left-color"),
                line.value_of_css_property("background-color"),
            )
            colours.setdefault((level, "dark" in look), set()).add(colour)
            _nothing_sticks_out(browser)
            browser.picture(f"verdict-{name}-{next(iter(look), 'light')}")
    assert all(len(each) == 1 for each in colours.values())
    assert len(set.union(*colours.values())) == 6  # three levels, light and dark


def test_the_page_of_relays(browser: Browser) -> None:
    _healthy()
    relay("web-2", WAITING_FOR_BROKER, last_error=REFUSED)
    for number in range(7, 21):
        CeleryOutboxRelay.objects.filter(worker=f"celery@web-{number}").delete()
    gone("old-1", minutes=11)
    outbox_store().check_out("web-6:17:ab12")
    browser.log_in(person(superuser=True))
    for name, look in {
        "admin-relays": {"size": (1360, 640)},
        "admin-relays-dark": {"dark": True},
        "admin-relays-narrow": {"size": NARROW},
    }.items():
        browser.settings(**look)
        browser.open(OUTBOX)
        browser.click(".outbox-verdict a")
        browser.picture(name)
        _nothing_sticks_out(browser)
        assert len(browser.all("#result_list tbody tr")) == 7
        assert browser.texts(".field-slot")[:2] == ["0", "1"]
        assert browser.texts(".outbox-gone") == ["celery@old-1", "celery@web-6"]
        assert browser.all("#content .addlink, #content .deletelink, select[name=action]") == []


def test_dead_letters_are_in_sight(browser: Browser) -> None:
    relay("worker-1")
    buried()
    browser.settings(size=LAPTOP)
    browser.log_in(person(superuser=True))
    browser.open(DEAD)
    assert browser.find(".outbox-summary").rect["height"] < 260


def test_errors_are_in_sight_on_a_laptop_and_on_a_phone(browser: Browser) -> None:
    backing_off()
    relay("worker-1")
    browser.log_in(person(superuser=True))
    for size in (LAPTOP, NARROW):
        browser.settings(size=size)
        browser.open(OUTBOX)
        assert browser.find("#result_list .outbox-error").rect["width"] >= 120
        _nothing_sticks_out(browser)


def test_the_switch_reloads_a_list_while_nothing_is_in_use(browser: Browser) -> None:
    waiting()
    relay("worker-1")
    browser.log_in(person(superuser=True))
    browser.open(OUTBOX)
    assert not browser.find("#outbox-refresh").is_selected()
    page = browser.find("html")
    browser.hurry()
    browser.find("#outbox-refresh").click()
    browser.wait(lambda: _is_gone(page), "the list is not reloaded")
    browser.find(".action-select").click()
    page = browser.find("html")
    browser.hurry()
    browser.wait(lambda: browser.turns() > 3, "the list does not wait")
    assert browser.find(".action-select").is_selected()
    browser.find(".action-select").click()
    browser.wait(lambda: _is_gone(page), "the list is not reloaded any more")
    browser.open(DEAD)
    assert browser.find("#outbox-refresh").is_selected()
    browser.find("#outbox-refresh").click()
    browser.open(OUTBOX)
    assert not browser.find("#outbox-refresh").is_selected()


def test_the_pages_run_no_inline_script(browser: Browser) -> None:
    row = backing_off()
    browser.log_in(person(superuser=True))
    browser.driver.get_log("browser")
    browser.open(OUTBOX)
    browser.open("admin:celery_outbox_celeryoutbox_change", args=[row.pk])
    assert [each["message"] for each in browser.driver.get_log("browser")] == []


def _nothing_sticks_out(browser: Browser) -> None:
    """What is ours fits the screen, to the last column of the list."""
    script = """
        const right = each => each.getBoundingClientRect().right;
        const page = document.documentElement.clientWidth, ours = '.outbox-tile, .outbox-panel,'
            + ' .outbox-verdict, .outbox-actions, .outbox-text, .outbox-databases a,'
            + ' .outbox-destinations :is(th, td), .outbox-behind';
        const cells = [...document.querySelectorAll('#result_list :is(th, td)')];
        return [...document.querySelectorAll(ours)].filter(each => right(each) > page + 1)
            .concat(cells.filter(each => right(each) > right(each.closest('.results')) + 1))
            .map(each => each.className)"""
    assert browser.driver.execute_script(script) == []


def test_charts_are_drawn_and_described(browser: Browser) -> None:
    for minutes in (1, 1, 30):
        waiting(created_at=ago(minutes=minutes + 0.3))
    published(created_at=ago(minutes=30.3))
    browser.log_in(person(superuser=True))
    browser.open(OUTBOX)
    labels = [svg.get_attribute("aria-label") for svg in browser.all(".outbox-chart svg")]
    assert labels[0] == "Arrivals, Last hour: 4 in total, at most 2 in one minute"
    assert labels[3] == "Dead letters, Last 24 hours: none"
    bars = Counter(bar.get_attribute("class") for bar in browser.all(".outbox-chart rect"))
    assert bars == {"outbox-bar-arrivals": 3, "outbox-bar-kept": 2}
    tall = browser.all(".outbox-bar-arrivals")
    assert all(bar.rect["height"] > 5 for bar in tall)


def busy_calendar() -> None:
    """Calls for the next days, fewer from day to day."""
    chance = random.Random(2)
    minutes = [chance.uniform(1, 60) for _ in range(20)]
    minutes += [chance.triangular(60, 1440, 700) for _ in range(70)]
    minutes += [1440 * (day + chance.random()) for day in range(1, 7) for _ in range(60 - 8 * day)]
    for number, each in enumerate(minutes):
        wanted, since = ahead(minutes=each), ago(minutes=chance.triangular(0, 1200, 0))
        task = "shop.tasks.send_invoice" if number % 4 == 0 else "shop.tasks.send_reminder"
        scheduled(eta=wanted, due_at=wanted, created_at=since, task_name=task)
    relay("worker-1", rate=0.4)


def test_what_is_scheduled_in_light_dark_and_narrow(browser: Browser) -> None:
    busy_calendar()
    browser.log_in(person(superuser=True))
    colours = set()
    for name, look in {
        "admin-scheduled": {}, "admin-scheduled-dark": {"dark": True},
        "admin-scheduled-narrow": {"size": NARROW},
    }.items():  # fmt: skip
        browser.settings(**look)
        browser.open(OUTBOX, "?state=scheduled")
        if "size" in look:
            assert not browser.find(".outbox-panels").is_displayed()
            browser.find(".outbox-details summary").click()
        browser.picture(name)
        shown = browser.all(".outbox-panel-scheduled .outbox-chart")
        assert [chart.text.split("\n")[0] for chart in shown] == [
            "Next hour", "Next 24 hours", "Next 7 days",
        ]  # fmt: skip
        assert all(chart.rect["width"] >= 150 for chart in shown)
        colours.add(browser.find(".outbox-bar-scheduled").value_of_css_property("fill"))
        _nothing_sticks_out(browser)
    assert len(colours) == 2  # light and dark


def test_what_was_not_counted_is_shaded_at_the_far_end(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "ROWS_READ", 2)
    for minutes in (5.5, 20.5, 40.5):
        scheduled(due_at=ahead(minutes=minutes))
    browser.log_in(person(superuser=True))
    for name, look in {"shaded-light": {}, "shaded-dark": {"dark": True}}.items():
        browser.settings(**look)
        browser.open(OUTBOX)
        browser.picture(name)
        hour = browser.find(".outbox-panel-scheduled svg")
        shade = hour.find_element(By.CSS_SELECTOR, ".outbox-unknown")
        end = hour.rect["x"] + hour.rect["width"] / 3
        assert shade.rect["x"] == pytest.approx(end, abs=2)
        assert shade.rect["width"] == pytest.approx(hour.rect["width"] * 2 / 3, abs=2)


def test_filter_and_search(browser: Browser) -> None:
    failing, other = backing_off(), waiting(task_name="shop.tasks.send_receipt")
    browser.log_in(person(superuser=True))
    browser.open(OUTBOX)
    browser.click(".outbox-panel tbody a")
    assert browser.all(".action-select") != []
    assert browser.texts("#result_list .field-task .outbox-quiet") == [failing.task_id]
    browser.open(OUTBOX)
    browser.find("input[name=task_name]").send_keys("shop.tasks.send_receipt")
    browser.click(".outbox-filter input[type=submit]")
    assert browser.texts("#result_list .field-task .outbox-quiet") == [other.task_id]
    browser.open(OUTBOX)
    browser.find("#searchbar").send_keys(failing.task_id)
    browser.click("#changelist-search input[type=submit]")
    assert browser.texts("#result_list .field-task .outbox-quiet") == [failing.task_id]


def test_retry_now_from_the_list_to_the_log(browser: Browser) -> None:
    row, held = backing_off(), in_flight()
    browser.log_in(person(superuser=True))
    browser.open(OUTBOX)
    browser.choose("Retry now", row, held)
    assert "1 outbox message" in browser.text
    assert "1 of those chosen will be left alone" in browser.text
    browser.picture("admin-confirm")
    assert CeleryOutbox.objects.get(pk=row.pk).due_at == row.due_at
    browser.confirm()
    assert "Due now: 1." in browser.text
    assert CeleryOutbox.objects.get(pk=row.pk).due_at < row.due_at
    assert CeleryOutbox.objects.get(pk=held.pk).due_at == held.due_at
    browser.open("admin:celery_outbox_celeryoutbox_history", args=[row.pk])
    assert "Retry now." in browser.text


def test_send_now_and_cancel_from_the_list_to_the_log(browser: Browser) -> None:
    sent, cancelled, due = scheduled(eta=ahead(hours=1)), scheduled(), waiting()
    browser.log_in(person(superuser=True))
    browser.open(OUTBOX)
    browser.choose("Send now", sent, due)
    assert "1 of those chosen will be left alone" in browser.text
    browser.confirm()
    assert "Due now: 1." in browser.text
    assert CeleryOutbox.objects.get(pk=sent.pk).due_at < sent.due_at
    browser.choose("Cancel", cancelled, due)
    assert "can't be undone" in browser.text
    browser.confirm()
    assert "Cancelled: 1." in browser.text
    assert browser.all(".outbox-panel-scheduled") == []
    assert set(CeleryOutbox.objects.all()) == {sent, due}
    browser.open("admin:celery_outbox_celeryoutbox_history", args=[sent.pk])
    assert "Send now." in browser.text


def test_an_action_on_the_page_of_a_message(browser: Browser) -> None:
    row = backing_off()
    dead = buried()
    browser.log_in(person(superuser=True))
    for size in (NARROW, DESKTOP):
        browser.settings(size=size)
        browser.open("admin:celery_outbox_celeryoutbox_change", args=[row.pk])
        _nothing_sticks_out(browser)
    browser.click("button[value=retry_now]")
    browser.click(".cancel-link")
    assert CeleryOutbox.objects.get(pk=row.pk).due_at == row.due_at
    browser.click("button[value=retry_now]")
    browser.confirm()
    assert "Due now: 1." in browser.text
    assert CeleryOutbox.objects.get(pk=row.pk).due_at < row.due_at
    assert browser.texts(".outbox-actions button") == ["Discard"]
    browser.open("admin:celery_outbox_celeryoutboxdeadletter_change", args=[dead.pk])
    browser.click("button[value=replay]")
    browser.confirm()
    assert "Back in the outbox: 1." in browser.text
    assert CeleryOutbox.objects.count() == 2


def test_go_back_does_nothing(browser: Browser) -> None:
    row = backing_off()
    browser.log_in(person(superuser=True))
    browser.open(OUTBOX, "?state=failing")
    browser.choose("Discard", row)
    browser.click(".cancel-link")
    assert browser.driver.current_url.endswith("?state=failing")
    assert CeleryOutbox.objects.filter(pk=row.pk).exists()


def test_discard(browser: Browser) -> None:
    row, kept = waiting(), waiting()
    browser.log_in(person(superuser=True))
    browser.open(OUTBOX)
    browser.choose("Discard", row)
    browser.confirm()
    assert "Discarded: 1." in browser.text
    assert list(CeleryOutbox.objects.all()) == [kept]


def test_replay_and_discard_dead_letters(browser: Browser) -> None:
    back, gone = buried(), buried()
    browser.log_in(person(superuser=True))
    browser.open(DEAD)
    browser.choose("Replay", back)
    browser.confirm()
    assert "Back in the outbox: 1." in browser.text
    browser.choose("Discard", gone)
    browser.confirm()
    assert CeleryOutbox.objects.get().task_id == back.task_id
    assert not CeleryOutboxDeadLetter.objects.exists()
    assert LogEntry.objects.count() == 2
    assert browser.tiles()["Dead letters"] == "0"


def test_a_viewer_looks_and_a_stranger_sees_nothing(browser: Browser) -> None:
    row = waiting()
    browser.log_in(person("view_celeryoutbox"))
    browser.open(OUTBOX)
    assert browser.tiles()["In the outbox"] == "1"
    assert browser.all("select[name=action]") == []
    browser.open("admin:celery_outbox_celeryoutbox_change", args=[row.pk])
    assert browser.all("input[name=_save], .deletelink, .addlink") == []
    browser.log_in(person())
    browser.open(OUTBOX)
    assert "403 Forbidden" in browser.text
    assert row.task_id not in browser.driver.page_source


def test_redacted_values_are_nowhere(browser: Browser) -> None:
    link = project.send_receipt.s(8, card=project.CARD)
    sent = project.charge_card.apply_async((7, project.CARD), {"card": project.CARD}, link=link)
    row, dead = CeleryOutbox.objects.get(task_id=sent.id), buried()
    browser.log_in(person(superuser=True))
    name = "admin:celery_outbox_celeryoutbox"
    for page, args in (
        (OUTBOX, ()), (DEAD, ()), (f"{name}_change", [row.pk]),
        (f"{name}deadletter_change", [dead.pk]),
    ):  # fmt: skip
        browser.open(page, args=args)
        assert project.CARD not in browser.driver.page_source
    browser.open(f"{name}_change", args=[row.pk])
    assert browser.text.count("[hidden]") >= 3


def test_the_page_of_a_message_in_light_dark_and_narrow(browser: Browser) -> None:
    expires = ahead(hours=30)
    with transaction.atomic():
        sent = project.charge_card.apply_async(
            ("Zoë", project.CARD), {"card": project.CARD, "note": "für später …"},
            queue="payments", priority=7, expires=expires,
        )  # fmt: skip
    failed = {"retries": 2, "last_error": ERROR, "updated_at": ago(minutes=2)}
    CeleryOutbox.objects.filter(task_id=sent.id).update(due_at=ahead(minutes=6), **failed)
    row = CeleryOutbox.objects.get(task_id=sent.id)
    browser.log_in(person(superuser=True))
    for look, name in (({}, ""), ({"dark": True}, "-dark"), ({"size": NARROW}, "-narrow")):
        browser.settings(**look)
        browser.open("admin:celery_outbox_celeryoutbox_change", args=[row.pk])
        browser.picture(f"admin-message{name}")
        assert "für später …" in browser.text
        assert "payments" in browser.text
        assert browser.texts(".outbox-actions button") == ["Retry now", "Discard"]
        _nothing_sticks_out(browser)


NO_ROUTE = "OperationalError: [Errno 113] No route to host"
LOOKS: dict[str, dict[str, Any]] = {"": {}, "-dark": {"dark": True}, "-narrow": {"size": NARROW}}


@pytest.fixture
def destinations(settings: Any) -> Any:
    """A shop that tells others what happens in it."""
    settings.CELERY_OUTBOX_DESTINATIONS = {
        "events": {"url": "amqp://mq/", "exchange": "domain"},
        "lake": {"url": "redis://lake/", "queue": "facts"},
        "partner": {"url": "amqp://partner/", "exchange": "shop"},
    }
    settings.CELERY_OUTBOX_RATES = {"partner.*": "120/h"}
    settings.CELERY_OUTBOX_EVENT_SOURCE = "/shop"
    return settings


def busy_destinations() -> CeleryOutboxDelivery:
    """One publishes, one is away, one is paused; an order waits for its first message."""
    first = failed(
        name="order.placed", key="order:71", due_at=ahead(minutes=2), created_at=ago(minutes=31)
    )
    for name in ("order.paid", "order.packed", "order.sent"):
        last = held_back(name=name, key="order:71", created_at=ago(minutes=20))
    dead_event(name="order.placed", key="order:64", created_at=ago(hours=3), dead_at=ago(hours=2))
    held_back(name="order.cancelled", key="order:64", created_at=ago(hours=1))
    event(name="page.seen", due_at=ago(seconds=1))
    for number in range(12):
        since = ago(minutes=6, seconds=20 * number)
        event("lake", "stock.counted", created_at=since, due_at=since)
    for number in range(5):
        event(
            "partner", "partner.price", created_at=ago(seconds=40 * number), due_at=ago(seconds=40)
        )
    paced("partner", "partner.*", 120 / 3600)
    told = {
        "events": {"state": RELAYING, "rate": 14.2},
        "lake": {"state": COOLING_DOWN, "rate": 0.0, "last_error": NO_ROUTE},
        "partner": {"state": PAUSED, "rate": 0.0},
    }
    relay("worker-1", rate=41.7, destinations=told)
    relay("worker-2", rate=38.4, destinations=told)
    relay("worker-3", STANDING_BY, standing_by=True)
    outbox_store().pause("the partner moves", "ann@example.com", "partner")
    CeleryOutboxPause.objects.update(paused_at=ago(minutes=40, seconds=2))
    assert first.pk < last.pk
    return last


def test_destinations_in_light_dark_and_narrow(browser: Browser, destinations: Any) -> None:
    waits = busy_destinations()
    browser.log_in(person(superuser=True))
    for suffix, look in LOOKS.items():
        browser.settings(**look)
        browser.open(DELIVERIES, "?destination=events")
        browser.picture(f"admin-destinations{suffix}")
        assert browser.texts(".outbox-destinations tbody th") == ["events", "lake", "partner"]
        verdicts = browser.texts(".outbox-said")
        assert "same key" in verdicts[0]
        assert f"its broker is away: {NO_ROUTE}" in verdicts[1]
        assert re.match("Paused for 40 min .*by ann@example.com: the partner moves", verdicts[2])
        assert "partner.* 2 per min" in browser.find(".outbox-destinations + .outbox-panel").text
        _nothing_sticks_out(browser)
        browser.open("admin:celery_outbox_celeryoutboxdelivery_change", args=[waits.pk])
        browser.picture(f"admin-event{suffix}")
        assert "waits for message" in browser.find(".field-state").text
        _nothing_sticks_out(browser)
        for page in (RELAYS, DEAD):
            browser.open(page)
            browser.picture(f"admin-{page.split('outbox')[-1].split('_')[0]}-destinations{suffix}")
            _nothing_sticks_out(browser)


def test_from_a_held_back_message_to_the_one_that_it_waits_for(
    browser: Browser, destinations: Any
) -> None:
    first, waits = failed(key="order:7"), held_back()
    browser.log_in(person(superuser=True))
    browser.open(DELIVERIES)
    browser.click("td[data-name='Held back'] a")
    assert browser.texts("#result_list .field-task .outbox-quiet") == [waits.task_id]
    browser.click("#result_list .field-state a")
    assert first.task_id in browser.find(".field-shown_id").text
    browser.click("button[value=discard]")
    browser.picture("admin-discard-behind")
    assert "1 later message with the same key waits behind this one" in browser.text
    browser.confirm()
    assert "Discarded: 1." in browser.text
    assert CeleryOutboxDelivery.objects.due().get() == waits


@pytest.mark.django_db(transaction=True, databases=["default", "orders"])
def test_the_switch_of_databases(browser: Browser, settings: Any) -> None:
    row = backing_off()
    browser.log_in(person(superuser=True))
    browser.open(OUTBOX)
    assert browser.all(".outbox-databases") == []
    settings.CELERY_OUTBOX_DATABASES = ["default", "orders"]
    for suffix, look in LOOKS.items():
        browser.settings(**look)
        browser.open(OUTBOX, "?state=failing")
        browser.picture(f"admin-databases{suffix}")
        assert browser.tiles()["Failing"] == "1"
        assert browser.texts(".outbox-databases a[aria-current]") == ["default"]
        _nothing_sticks_out(browser)
        browser.click(".outbox-databases a:last-child")
        assert browser.tiles()["Failing"] == "0"
        assert "state=failing" in browser.driver.current_url
        browser.click(".outbox-verdict a")
        assert browser.texts(".outbox-databases a[aria-current]") == ["orders"]
        browser.open("admin:celery_outbox_celeryoutbox_change", args=[row.pk])
        browser.picture(f"admin-databases-message{suffix}")
        assert browser.texts(".outbox-databases a[aria-current]") == ["default"]
