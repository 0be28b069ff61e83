"""What a suite costs before it runs: tokens, operations, hours, memory and disk, by arithmetic."""
