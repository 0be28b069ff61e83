"""The HeRo paper: its printed tables, what they say by themselves, and ours beside them."""
