"""Results as HTML, Markdown, text and JSON: formatting only, nothing is computed here."""
