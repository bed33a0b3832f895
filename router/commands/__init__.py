"""What people type: each module registers its commands; `app` puts them together."""
