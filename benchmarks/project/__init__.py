"""The project under measurement: one task, and an app each for us and for the peer."""
