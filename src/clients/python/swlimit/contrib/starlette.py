"""For Starlette and FastAPI: a response that keeps its place while it streams."""

from typing import Any

from starlette.background import BackgroundTask
from starlette.responses import Response

from .._sync_async import kind_of
from ..hold_limiter import AsyncHold
from .asgi import Receive, Scope, Send, while_sending


class HeldResponse(Response):
    """Sends another response, and keeps a hold until its body has ended, the client has gone, or the task is cancelled:
    `return HeldResponse(StreamingResponse(tokens()), hold)`."""

    def __init__(self, response: Response, hold: AsyncHold) -> None:
        if not isinstance(response, Response) or not isinstance(hold, AsyncHold):
            raise TypeError(f"HeldResponse takes a response and an AsyncHold, not {kind_of(response)} and "
                            f"{kind_of(hold)}")
        self._response, self._hold = response, hold
        self.status_code, self.raw_headers = response.status_code, response.raw_headers

    @property
    def background(self) -> Any:
        return self._response.background

    @background.setter
    def background(self, task: BackgroundTask | None) -> None:
        self._response.background = task

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await while_sending(self._hold, self._response, scope, receive, send)
