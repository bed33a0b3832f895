"""The global KV-metadata index: which engine holds which prefix of which tenant's prompt.

A library of its own: it knows engines' events and prompts' tokens, and nothing of routing.
"""
