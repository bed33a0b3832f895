"""From engines to the index: wire formats, sequences, sockets and the tasks that follow them."""
