"""What the suites share: processes and servers, a proxy, databases and their settings.

Nothing in here is a test, and nothing in here knows what a suite tests.
"""
