"""Responses of Starlette and FastAPI."""

from .contrib.starlette import HeldResponse as HeldResponse
