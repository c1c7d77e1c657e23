"""From an error to its cause, and from the cause to a command that mends it."""
