"""How the methods are compared: jobs, steps, evaluation, statistics, the demo world."""
