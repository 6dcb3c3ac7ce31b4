"""What the outbox reports to people and their tools: log lines, counters, metrics, traces.

`journal` turns what a relay does into log lines and counters, `log` has the table of log events,
`recorder` is the interface to tracing and metrics, and `recorders` has one module per vendor. An
error in any of them never affects a message.
"""
