"""Replay a log through a real server with the module: who would have been limited, how often, and when."""
