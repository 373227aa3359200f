"""OpenAI's protocol: each assistant is a model, by the slug of its address."""
