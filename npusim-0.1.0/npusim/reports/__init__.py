"""Pictures of a run, one module each: rows are computed first, then drawn on given axes."""
