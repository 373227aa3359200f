"""Requests to addresses that people give: every one is checked before it is connected to."""
