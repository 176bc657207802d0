"""Parts of the report, one a field."""
