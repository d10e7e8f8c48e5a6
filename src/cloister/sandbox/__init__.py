"""RUN things where they can do no harm."""
