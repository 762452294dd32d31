"""Views that follow a session: polling, throttling, messages."""
