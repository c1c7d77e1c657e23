"""How each operation is written: its parameters, its constants and the call of its kernel."""
