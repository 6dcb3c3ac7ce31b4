"""What leaves the outbox for people and their tools: log lines, counters, metrics, traces."""
