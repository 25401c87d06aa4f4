"""A model as it ran: one run in ordinary Python, operator call by operator call."""
