"""Recording made right: needs torch, which reading a file does not."""
