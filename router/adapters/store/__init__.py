"""What workers and replicas share through Redis: limits, slots, orders, load, stored responses."""
