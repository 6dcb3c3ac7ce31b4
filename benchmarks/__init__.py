"""One program that measures the outbox next to its alternatives: `make bench`, `make bench-quick`.

`__main__.py` runs the sections of a `plan`; each section interleaves its contenders and adds what
it measured to `results`; `report.py` and `plots.py` turn that into docs/benchmarks. Contenders run
in processes of their own: real workers, the peer's relay, and the small `agents`.
"""
