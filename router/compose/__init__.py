"""The composition root: the only room where implementations are chosen and put together."""
