"""Orders, and the receipts that a task sends for them."""
