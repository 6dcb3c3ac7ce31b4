"""Budgets: what speed is made of, counted and never timed, so that it holds on any machine."""
