"""Scoring: the lm-eval model class with routing counters, tasks, perplexity."""
