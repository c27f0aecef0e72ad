"""Copies keys between the layout of the module and that of its script."""
