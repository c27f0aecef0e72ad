"""Compares the replies of the script with those of the module, on any release of the servers."""
