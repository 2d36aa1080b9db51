"""What users run: benchmarks, reports, evaluation, history, checks, and the command line."""
