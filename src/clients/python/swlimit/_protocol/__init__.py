"""Commands, replies, and how a server without the module is asked."""
