"""What a durable folder is said to hold."""
