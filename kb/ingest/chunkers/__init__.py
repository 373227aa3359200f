"""Cuts parsed documents into chunks: one strategy a module, none of which knows a database."""
