"""The story, in four acts. Every line with a tick was observed; the first that was not ends it.

`DEMO_BREAK=relay`, `outbox` or `lease` breaks that part on purpose, and then the demo must fail.
"""

import sys
import time

from demo.say import ClaimFailedError, Story, eventually, paint
from demo.stage import Stage
from demo.worker import LEASE, Worker

ORDERS_IN_THE_OUTAGE = 20
ORDERS_AND_A_KILL = 200


def main() -> int:
    started, story, stage = time.monotonic(), Story(), Stage()
    try:
        stage.set_up()
        play(story, stage)
    except ClaimFailedError as failed:
        print(f"\n{paint('The demo failed:', 'red')} {failed}.\n\nThe worker's last lines:\n")
        print(stage.last_lines())
        return 1
    finally:
        stage.clear()
    seconds = time.monotonic() - started
    print(f"\n{paint(f'{story.claims} claims, all observed, in {seconds:.0f} s.', 'green')}")
    return 0


def play(story: Story, stage: Stage) -> None:
    introduce(story, stage)
    worker = stage.start_worker()
    story.command(worker.command)
    an_order_commits(story)
    an_order_rolls_back(story)
    the_broker_goes_away(story, stage)
    a_worker_is_killed(story, stage)


def introduce(story: Story, stage: Stage) -> None:
    from django.db import connection

    print(paint("A shop whose orders send a receipt, by a Celery task.", "bold"))
    story.tell(f"database: {connection.vendor}; broker: {stage.broker.url.partition(':')[0]}")


def an_order_commits(story: Story) -> None:
    from django.db import transaction
    from orders.models import Receipt
    from orders.placing import place_order

    from django_integration.models import CeleryOutbox

    story.act("An order commits")
    with transaction.atomic():
        order = place_order()
        rows = CeleryOutbox.objects.filter(task_name="orders.tasks.send_receipt").count()
        story.claim(
            "send_receipt.delay() wrote a row next to the order, in its transaction", seen=rows
        )
    committed = time.monotonic()
    receipts = Receipt.objects.filter(order_number=order.number, order_exists=True)
    seen = eventually(receipts.exists)
    story.claim(
        f"its task ran {1000 * (time.monotonic() - committed):.0f} ms after the commit", seen=seen
    )
    story.claim("the row is gone", seen=eventually(outbox_is_empty))


def an_order_rolls_back(story: Story) -> None:
    from orders.models import Order, Receipt
    from orders.placing import PaymentDeclined, new_number, place_order

    story.act("An order rolls back")
    number = new_number()
    try:
        place_order(number, fails=True)
    except PaymentDeclined:
        story.tell(f"order {number}: the payment was declined after send_receipt.delay()")
    story.claim(
        "no order, and no row", seen=not Order.objects.filter(number=number) and outbox_is_empty()
    )
    later = place_order()
    seen = eventually(Receipt.objects.filter(order_number=later.number).exists)
    ghosts = Receipt.objects.filter(order_number=number).exists()
    story.claim(
        "a later order's task ran, the task of this one never did", seen=seen and not ghosts
    )
    without_an_outbox(story)


def without_an_outbox(story: Story) -> None:
    """The contrast: the same task, excluded from the outbox."""
    from django.db import transaction
    from orders.models import Receipt
    from orders.placing import PaymentDeclined, new_number
    from orders.tasks import send_receipt_directly

    number = new_number()
    try:
        with transaction.atomic():
            send_receipt_directly.delay(number)
            raise PaymentDeclined(number)  # noqa: TRY301  as in place_order()
    except PaymentDeclined:
        ghost = Receipt.objects.filter(order_number=number, order_exists=False)
        story.claim(
            "published directly instead, it runs for an order that does not exist",
            seen=eventually(ghost.exists),
        )


def the_broker_goes_away(story: Story, stage: Stage) -> None:
    from orders.placing import place_order

    from django_integration.models import CeleryOutbox

    story.act("The broker goes away")
    stage.broker.take_away()
    story.tell(stage.broker.how)
    started = time.monotonic()
    numbers = [place_order().number for _ in range(ORDERS_IN_THE_OUTAGE)]
    milliseconds = 1000 * (time.monotonic() - started)
    story.claim(
        f"{len(numbers)} orders were placed in {milliseconds:.0f} ms, no customer saw an error",
        seen=len(numbers) == ORDERS_IN_THE_OUTAGE,
    )
    story.claim("the relay noticed", seen=eventually(lambda: relay_noticed(stage.workers[-1])))
    waiting = CeleryOutbox.objects.filter(retries=0, due_at__isnull=False).count()
    story.claim(
        f"{waiting} rows wait, none of them spent a retry, no task ran",
        seen=waiting == len(numbers) and receipts_for(numbers) == 0,
    )
    stage.broker.bring_back()
    back = time.monotonic()
    all_there = eventually(lambda: receipts_for(numbers) == len(numbers))
    story.claim(
        f"it is back, and {time.monotonic() - back:.1f} s later all {len(numbers)} tasks have run",
        seen=all_there,
    )


def relay_noticed(worker: Worker) -> bool:
    """It failed to publish, or the worker lost its own connection and paused the relay."""
    return worker.has_logged("celery_outbox_broker_unavailable") or worker.has_logged(
        "Connection to broker lost"
    )


def a_worker_is_killed(story: Story, stage: Stage) -> None:
    story.act("A worker is killed")
    stage.workers[-1].stop()
    story.tell(
        "The one that is killed relays, but serves another queue: what becomes of a task that"
    )
    story.tell(
        "runs in a killed worker is decided by Celery's acks_late, with an outbox or without."
    )
    numbers, leased = kill_in_mid_batch(stage)
    story.command(f"kill -9 {stage.workers[-1].process.pid}")
    story.claim(
        f"{len(numbers)} orders are committed, {leased} rows are leased to a dead process",
        seen=leased,
    )
    stage.start_worker()
    started = time.monotonic()
    all_there = eventually(lambda: receipts_for(numbers) == len(numbers), pause=0.1)
    story.claim(
        f"another worker took over after the lease ({LEASE} s): all {len(numbers)} tasks have run, "
        f"{time.monotonic() - started:.1f} s after its start",
        seen=all_there,
    )
    story.claim("the outbox is empty", seen=eventually(outbox_is_empty))
    tell_duplicates(story, numbers)


def kill_in_mid_batch(stage: Stage) -> tuple[list[str], int]:
    """Place orders, and kill the relay between claim and settle. Returns orders, leased rows."""
    from django.db import transaction
    from orders.placing import place_order

    from django_integration.models import CeleryOutbox

    numbers: list[str] = []
    for _ in range(5):  # the relay may finish before the kill
        worker = stage.start_worker(queue=f"{stage.queue}-other")
        with transaction.atomic():
            numbers += [place_order().number for _ in range(ORDERS_AND_A_KILL)]
        eventually(
            lambda: CeleryOutbox.objects.in_flight().exists() or outbox_is_empty(), pause=0.001
        )
        time.sleep(0.02)  # some are published by now, and none is settled
        worker.kill()
        if leased := CeleryOutbox.objects.in_flight().count():
            return numbers, leased
    return numbers, 0


def tell_duplicates(story: Story, numbers: list[str]) -> None:
    from orders.models import Receipt

    twice = Receipt.objects.filter(order_number__in=numbers, runs__gt=1).count()
    if twice:
        story.note(f"{twice} tasks ran twice: published before the kill, and not settled any more.")
    else:
        story.note("No task ran twice: the kill came before the first one was published.")
    story.tell("Delivery is at least once. The task is idempotent: one receipt per order.")


def outbox_is_empty() -> bool:
    from django_integration.models import CeleryOutbox

    return not CeleryOutbox.objects.exists()


def receipts_for(numbers: list[str]) -> int:
    from orders.models import Receipt

    return Receipt.objects.filter(order_number__in=numbers, order_exists=True).count()


if __name__ == "__main__":
    sys.exit(main())
