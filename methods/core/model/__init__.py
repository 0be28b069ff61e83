"""Models on disk and in memory: families, checks, loading, saving, and the ledger of what ran."""
