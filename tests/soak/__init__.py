"""Mixed traffic and faults for minutes, and then the books: `make soak ARGS="--minutes 30"`."""
