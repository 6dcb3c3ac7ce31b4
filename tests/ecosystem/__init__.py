"""Other people's libraries in real projects, each in a scenario of its own: `make ecosystem`."""
