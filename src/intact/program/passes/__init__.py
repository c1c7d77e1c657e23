"""Programs to programs: each file one change of form that keeps what is computed."""
