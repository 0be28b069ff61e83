"""Routing: a router decides for each token which units run; the core runs them."""
