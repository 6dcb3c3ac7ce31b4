"""A simulation of standing by, for fleets of up to 10,000 members: `python -m benchmarks.fleet`.

No database and no clock: events in simulated time, the same for the same seed. The times come from
`celery_outbox_steps.fleet`. `policies.py` has the rules that are compared, `model.py` the fleet,
`scenarios.py` what happens to it, `report.py` the page docs/benchmarks/fleet.md.
"""
