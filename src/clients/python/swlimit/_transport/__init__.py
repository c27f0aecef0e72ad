"""Connections to servers, and everything that runs beside the requests."""
