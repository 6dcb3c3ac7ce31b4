"""What a hostile row can't do: run code, change SQL, get into logs, stop its neighbours."""
