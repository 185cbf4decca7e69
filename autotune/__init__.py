"""Schedules that were measured: what is tuned, how, and where the results are kept."""
