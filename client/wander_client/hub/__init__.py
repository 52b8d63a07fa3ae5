"""The hub's HTTP interface, from the client's side."""
