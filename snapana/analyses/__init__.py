"""Questions that are put to a replayed snapshot; one module answers one question."""
