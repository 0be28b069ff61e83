"""A suite as jobs and commands, what it costs before it runs, and where it stands."""
