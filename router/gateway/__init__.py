"""HTTP in: the OpenAI surface, the admin API, health. The only room that knows a web framework."""
