"""`websocket`: many turns of many sessions on one socket."""
