"""The graph of a knowledge base: its entities, what is known of them, and where that comes from."""
