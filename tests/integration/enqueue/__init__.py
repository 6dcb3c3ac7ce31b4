"""What a call does in its caller's process: rows, transactions, and nothing over the network."""
