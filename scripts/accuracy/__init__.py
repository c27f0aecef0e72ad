"""How exactly the module limits, measured beside a log that keeps every timestamp. See ACCURACY.md."""
