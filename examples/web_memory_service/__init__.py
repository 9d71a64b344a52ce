"""A web service that keeps the memory of its agents itself: loads it, sends it along, saves what comes back."""
