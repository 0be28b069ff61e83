"""One place for a model's folder: families, checks, loading, saving, and what ran."""
