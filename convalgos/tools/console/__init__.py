"""Text, tables, progress and exit codes in a terminal."""
