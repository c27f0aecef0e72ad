"""What the user can put right."""


class UserError(Exception):
    """Ends the program with this one line and exit code 2."""
