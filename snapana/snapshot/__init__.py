"""Reading memory snapshots: safe unpickling, every generation to one model, stacks."""
