"""PyTorch's caching allocator: what it did (replay) and what it would do (simulate)."""
