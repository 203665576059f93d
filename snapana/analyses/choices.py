"""What may be chosen by name; apart from the analyses, so that ``--help`` imports none of them."""

# What a trace tells besides.
TRACE_GROUPS = ("operator", "module", "forward_operator")
GROUPS = ("site", "category", "file", "function", "annotation", "step", "stream", "pool")
