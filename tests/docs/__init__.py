"""The docs are true: snippets run, links lead somewhere, the reference is complete."""
